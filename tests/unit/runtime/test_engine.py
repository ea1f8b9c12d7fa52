"""Many leases on one loop, from hints, looks and promotions."""

import asyncio
import logging
from threading import Event

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from ravi_django import register, tool
from ravi_django.kernel import ChatMessage, ModelError, RunFailedError
from ravi_django.models import Blob, InboxMessage, Run, Status, WorkerProcess
from ravi_django.testing import ScriptedModel, journal_of, warm
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    CodeAgent,
    auntil,
    claim_next,
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
)
from tests.support.tool_calls import calling
from tests.support.world import Engine, Runtime

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


async def ask(ctx, inbox):
    return (await ctx.llm([USER])).text


def with_engine(story):
    async def main():
        engine = Engine()
        try:
            return await asyncio.wait_for(story(engine), BOUND_S)
        finally:
            await engine.close(drain_s=0.5)

    return asyncio.run(main())


def statuses():
    return sorted(Run.objects.values_list("status", flat=True))


@pytest.mark.sqlite
def test_a_doubled_hint_drives_the_run_once():
    model = ScriptedModel(["hello"])
    code(ask, model=model)
    run = make_run()

    async def story(engine):
        first, *others = [engine.hint(run.id) for _ in range(5)]
        assert others == [None] * 4
        return await first

    assert with_engine(story)
    run.refresh_from_db()
    assert (run.status, run.lease_epoch, len(model.calls)) == (Status.COMPLETED, 1, 1)


@pytest.mark.sqlite
def test_one_look_finds_all_there_is_and_a_faulty_run_does_not_disturb_the_others(caplog):
    async def story_code(ctx, inbox):
        if str(bad.id) == ctx.run_id:
            raise ValueError("a bug")
        return await ask(ctx, inbox)

    code(story_code, model=ScriptedModel(["hello"]))
    bad, *_ = [make_run() for _ in range(12)]

    async def story(engine):
        engine.look()
        await auntil(lambda: not engine._leases)

    with_engine(story)
    assert statuses() == ["completed"] * 11 + ["failed"]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.action for record in errors] == ["run.failed"]


def test_a_process_that_is_full_takes_an_expired_lease_before_what_is_ready(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RUNS": 2}
    gate, began = asyncio.Event(), []

    async def story_code(ctx, inbox):
        began.append(ctx.run_id)
        await gate.wait()

    code(story_code)
    dead = leased(make_run())
    ready = [make_run() for _ in range(3)]

    async def story(engine):
        engine.look()
        await auntil(lambda: began == [str(ready[0].id)])
        assert await engine.hint(ready[1].id) is False
        await engine.database.call(expire, dead)
        await auntil(lambda: engine.look() or len(began) == 2)  # as every second: the look before may not have ended
        gate.set()
        await auntil(lambda: not engine._leases)

    with_engine(story)
    assert began == [str(run_id) for run_id in (ready[0].id, dead.run_id, ready[1].id, ready[2].id)]


def test_a_call_waits_for_its_bytes_and_the_process_claims_nothing_more(settings):
    settings.RAVI = {**settings.RAVI, "PROCESS_BYTES": 5_000}
    gate, called = asyncio.Event(), []

    class Slow(ScriptedModel):
        async def stream(self, messages, options, meta):
            called.append(messages[0].text[0])
            await gate.wait()
            async for event in super().stream(messages, options, meta):
                yield event

    async def story_code(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", str(names[ctx.run_id]) * 1_000)])

    code(story_code, model=Slow(["ok"] * 3))
    runs = [make_run() for _ in range(4)]
    names = {str(run.id): number for number, run in enumerate(runs)}

    async def story(engine):
        engine.hint(runs[0].id)
        await auntil(lambda: called)
        engine.hint(runs[1].id)
        await auntil(lambda: world.process_bytes.is_full)
        assert await engine.hint(runs[2].id) is False
        engine.cancel_run(runs[1].id)
        await auntil(lambda: runs[1].id not in engine.active)
        assert called == ["0"]
        gate.set()
        await auntil(lambda: not engine._leases)

    with_engine(story)
    assert sorted(called) == ["0", "2", "3"] and statuses() == ["cancelled"] + ["completed"] * 3
    assert world.process_bytes.try_take(5_000)
    world.process_bytes.give_back(5_000)


def test_bytes_are_given_in_order_to_threads_and_loops_and_not_to_those_that_have_left():
    budget, order = world.BytesBudget(10), []

    async def take(name, wanted):
        async with budget.holding(wanted):
            order.append(name)

    async def waiting():
        left = asyncio.ensure_future(take("left", 9))
        await asyncio.sleep(0)
        big = asyncio.ensure_future(take("big", 30))  # more than there is: alone
        await asyncio.sleep(0)
        small = in_background(asyncio.run, take("small", 1))  # it would have room, and waits in its order
        await auntil(lambda: len(budget._waiting) == 3)
        left.cancel()
        assert not budget.try_take(3) and budget.try_take(2) and not order
        for taken in (8, 2):
            budget.give_back(taken)
        await big
        await asyncio.to_thread(small.result, BOUND_S)

    assert budget.try_take(8) and not budget.is_full
    asyncio.run(waiting())
    assert order == ["big", "small"] and budget.try_take(10) and budget.is_full


def test_a_hint_does_not_queue_behind_hundreds_of_another_owners(monkeypatch):
    began, rooms, claim = [], [], world.claim_batch
    world.patch(monkeypatch, "claim_batch", lambda *args, **kwargs: rooms.append(args[2]) or claim(*args, **kwargs))

    async def story_code(ctx, inbox):
        began.append(ctx.run_id)

    code(story_code)
    owner = get_user_model().objects.create(username="many")
    runs = [make_run(owner=owner) for _ in range(60)]
    chat = make_run()

    async def story(engine):
        for run in (*runs, chat):
            engine.hint(run.id)
        await auntil(lambda: not engine._leases)

    with_engine(story)
    assert len(began) == 61
    assert began.index(str(chat.id)) < 24
    assert rooms[0] == 1, "the claims of the first hints wait for a thread"


def test_hints_during_a_claim_are_one_more_claim_if_it_was_too_early(monkeypatch):
    """The claim has found a suspended run, and the wake-up came before its answer."""
    code(ask, model=ScriptedModel(["hello"]))
    run = make_run()
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED)
    claimed, woken, claim = [], Event(), world.claim

    def claiming(*args):
        claimed.append(claim(*args))
        woken.wait(BOUND_S)
        return claimed[-1]

    world.patch(monkeypatch, "claim", claiming)

    async def story(engine):
        first = engine.hint(run.id)
        await auntil(lambda: claimed)
        await asyncio.to_thread(in_background(world.touch, [run.id]).result, BOUND_S)
        assert [engine.hint(run.id) for _ in range(3)] == [None] * 3
        woken.set()
        return await first

    assert with_engine(story)
    run.refresh_from_db()
    assert (run.status, len(claimed)) == (Status.COMPLETED, 2)


def test_a_worker_that_is_half_full_gives_the_children_of_its_runs_to_others(settings, monkeypatch):
    settings.RAVI = {**settings.RAVI, "MAX_RUNS": 6, "ENGINE": "celery"}
    code(ask, model=ScriptedModel(["hello"] * 3))
    sent = []
    world.patch(monkeypatch, "send_many", lambda run_ids: sent.extend(run_ids))
    runs = [make_run() for _ in range(3)]

    async def story(engine):
        engine._driving = 2
        engine.wake([runs[0].id])
        await auntil(lambda: not engine._leases)
        assert not sent
        engine._driving = 3
        engine.wake([run.id for run in runs[1:]])
        await auntil(lambda: not engine._leases)
        engine._driving = 0

    with_engine(story)
    assert sent == [run.id for run in runs[1:]]


def expire(lease):
    Run.objects.filter(id=lease.run_id).update(lease_expires_at="2020-01-01T00:00:00Z")


def test_a_process_that_found_nothing_looks_no_more_after_each_run(monkeypatch):
    code(ask, model=ScriptedModel(["hello"]))
    looks = []
    claim = world.claim_batch
    world.patch(monkeypatch, "claim_batch", lambda *args, **kwargs: looks.append(1) or claim(*args, **kwargs))

    async def story(engine):
        for _ in range(3):
            await engine.hint((await engine.database.call(make_run)).id)
            await auntil(lambda: not engine._leases)

    with_engine(story)
    assert statuses() == ["completed"] * 3
    assert len(looks) <= 1


@on_postgresql
def test_hundreds_in_flight_share_a_few_connections():
    gate, began = asyncio.Event(), []

    @tool
    async def hold() -> str:
        """Hold."""
        began.append(1)
        await gate.wait()
        return ""

    code(calling("hold"), tools=[hold])
    for _ in range(100):
        make_run()

    def sessions():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%') FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return cursor.fetchone()

    async def story(engine):
        engine.look()
        await auntil(lambda: len(began) == 100)
        found = await asyncio.to_thread(lambda: in_background(sessions).result(BOUND_S))
        gate.set()
        await auntil(lambda: not engine._leases)
        return found

    warm.close()  # its connections are not this engine's
    found, in_transaction = with_engine(story)
    assert found <= 8 and in_transaction == 0
    assert statuses() == ["completed"] * 100


def test_a_promoted_run_is_driven_at_once():
    code(ask, model=ScriptedModel(["hello"]))
    first = make_run()
    second = make_run(session=first.session)

    async def story(engine):
        await engine.hint(first.id)
        await auntil(lambda: not engine._leases)

    with_engine(story)

    second.refresh_from_db()
    assert second.status == Status.COMPLETED


def test_a_run_that_cannot_be_read_is_blocked_and_not_tried_for_ever():
    code(ask, model=ScriptedModel(["hello"]))
    run = make_run()
    InboxMessage.objects.filter(run=run).update(body={"id": "x", "what": "is this"})
    assert drive(run).status == Status.BLOCKED


def test_a_worker_is_listed_while_it_lives():
    def beat_and_list(engine):
        engine.heartbeat.beat()
        return list(WorkerProcess.objects.values_list("name", flat=True))

    async def story(engine):
        return await asyncio.to_thread(in_background(beat_and_list, engine).result, BOUND_S), [engine.name]

    listed, names = with_engine(story)
    assert listed == names
    assert not WorkerProcess.objects.exists()


@pytest.mark.sqlite
def test_the_first_row_pins_the_agents_spec(clock):
    agent = code(ask, model=ScriptedModel(["hello"]))
    agent.spec = lambda: {"instructions": "be brief"}
    run = drive(make_run(), dies="end")
    clock.advance(31)
    drive(run)

    started = [entry for entry in journal_of(run) if entry.kind == "run.started"]
    assert len(started) == 1
    (resumed,) = [entry for entry in journal_of(run) if entry.kind == "run.resumed"]
    assert started[0].result["worker"] != resumed.result["worker"]
    blob = Blob.objects.get(id=started[0].result["spec"])
    assert bytes(blob.body) == b'{"class":"CodeAgent","instructions":"be brief"}'


def test_the_result_of_a_run_that_is_driven_here_is_not_read(monkeypatch):
    read = []
    read_end = world.read_end
    world.patch(monkeypatch, "read_end", lambda run_id: read.append(run_id) or read_end(run_id))

    async def main():
        async with Runtime() as rt:
            run_id = await rt.submit("test/code", "hi")
            while_driven = await rt.result(run_id, timeout=BOUND_S)
            assert not read
            return while_driven, await rt.result(run_id, timeout=BOUND_S)

    code(ask, model=ScriptedModel(["hello"]))
    assert asyncio.run(main()) == ("hello", "hello")
    assert len(read) == 1


def test_runtime_raises_the_runs_error_and_gives_up_after_its_time(settings):
    settings.RAVI = {**settings.RAVI, "DRAIN_S": 0.05}

    async def main():
        async with Runtime() as rt:
            run_id = await rt.submit("test/code", "hi")
            with pytest.raises(RunFailedError) as caught:
                await rt.result(run_id, timeout=BOUND_S)
            hanging.delay = 60
            other = await rt.submit("test/code", "hi")
            with pytest.raises(TimeoutError, match=f"run {other} is (pending|running) after 0.1 s"):
                await rt.result(other, timeout=0.1)
            return caught.value

    hanging = ScriptedModel([ModelError("no credit", type="PaymentRequired")])
    code(ask, model=hanging)

    error = asyncio.run(main())
    assert (str(error), error.type, error.status) == ("no credit", "PaymentRequired", "failed")


@pytest.mark.sqlite
@pytest.mark.parametrize(("owner_seen_s", "crashes"), [(-1, 1), (1, 0)])
@pytest.mark.parametrize("look", [True, False])
def test_a_lost_lease_counts_a_crash_unless_its_worker_was_seen_later(clock, owner_seen_s, crashes, look):
    lease = leased(make_run(), "w1")
    over = lease.run.lease_expires_at
    clock.advance((over - clock.now).total_seconds() + owner_seen_s)
    world.worker_seen("w1", 1)
    assert WorkerProcess.objects.get().seen_at == clock.now
    clock.advance(60)
    claimed = claim_next("w2", ["test/code"]) if look else world.claim(lease.run_id, "w2")
    assert claimed.run.crashes == crashes


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_drives_one_suspect_at_a_time_beside_its_other_runs(step, caplog, monkeypatch, ends):
    """The next one is claimed once the first has ended, or has come past the place where its workers died."""
    world.patch(monkeypatch, "LATE_S", 0.001)
    driven = []

    async def suspect(ctx, inbox):
        driven.append(ctx.run_id)
        await gates[ctx.run_id].wait()
        if not ends:
            await ctx.tool("step", name="past it")
            await asyncio.Event().wait()

    async def other(ctx, inbox):
        driven.append("beside it")

    async def scenario(engine):
        engine.hint(first.id)
        await auntil(lambda: driven == [str(first.id)])
        assert await engine.hint(second.id) is False
        engine.look()
        await auntil(lambda: driven == [str(first.id), "beside it"] and not engine._looking)
        await engine.database.call(second.refresh_from_db)
        assert (second.status, second.lease_epoch) == (Status.PENDING, 0)
        gates[str(first.id)].set()
        await auntil(lambda: driven[2:] == [str(second.id)])

    register(CodeAgent(suspect, key="suspect", tools=[step]))
    register(CodeAgent(other, key="other"))
    first, second = suspects = [make_run("test/suspect") for _ in range(2)]
    gates = {str(run.id): asyncio.Event() for run in suspects}
    make_run("test/other")
    Run.objects.filter(id__in=[run.id for run in suspects]).update(crashes=2)
    with_engine(scenario)
    waiting = [record for record in caplog.records if getattr(record, "action", "") == "run.suspect_waits"]
    assert [record.args for record in waiting] == [(second.id, first.id)]
