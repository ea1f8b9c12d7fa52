"""Many leases on one loop, from hints, looks and promotions."""

from __future__ import annotations

import asyncio
import logging

import pytest
from django.db import connection

from ravi_django import tool
from ravi_django.kernel import ChatMessage, ModelError, RunFailedError
from ravi_django.models import Blob, InboxMessage, Run, Status, WorkerProcess
from ravi_django.testing import ScriptedModel, journal_of, warm
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, drive, in_background, leased, make_run, on_postgresql
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
        return await asyncio.gather(*(engine.hint(run.id) for _ in range(5)))

    had = with_engine(story)

    run.refresh_from_db()
    assert sorted(had) == [False] * 4 + [True]
    assert (run.status, run.lease_epoch, len(model.calls)) == (Status.COMPLETED, 1, 1)


def test_two_engines_that_are_hinted_at_once_call_the_model_once():
    model = ScriptedModel(["hello"])
    code(ask, model=model)
    runs = [make_run() for _ in range(10)]

    def work():
        async def story(engine):
            await asyncio.gather(*(engine.hint(run.id) for run in runs))

        with_engine(story)

    for done in [in_background(work) for _ in range(2)]:
        done.result(BOUND_S)

    assert statuses() == ["completed"] * 10
    assert len(model.calls) == 10
    assert set(Run.objects.values_list("lease_epoch", flat=True)) == {1}


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
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_process_claims_no_more_than_it_has_room_for(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RUNS": 3}
    began, most = [], []
    gate = None

    @tool
    async def hold() -> str:
        """Hold."""
        began.append(1)
        most.append(len(began))
        await gate.wait()
        began.pop()
        return ""

    async def story_code(ctx, inbox):
        return (await ctx.tool("hold")).text

    code(story_code, tools=[hold])
    runs = [make_run() for _ in range(8)]

    async def story(engine):
        nonlocal gate
        gate = asyncio.Event()
        for run in runs:
            engine.hint(run.id)
        engine.look()
        await auntil(lambda: len(began) == 2)
        gate.set()
        await auntil(lambda: not engine._leases)

    with_engine(story)

    assert max(most) == 2  # and one slot is kept for expired leases
    assert statuses() == ["completed"] * 8  # one that ends makes the process look for the next


def test_a_process_that_is_full_takes_an_expired_lease_before_what_is_ready(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RUNS": 2}
    gate, began = None, []

    async def story_code(ctx, inbox):
        began.append(ctx.run_id)
        await gate.wait()

    code(story_code)
    dead = leased(make_run())
    ready = [make_run() for _ in range(3)]

    async def story(engine):
        nonlocal gate
        gate = asyncio.Event()
        engine.look()
        await auntil(lambda: began == [str(ready[0].id)])
        assert await engine.hint(ready[1].id) is False
        await engine.database.call(expire, dead)
        engine.look()
        await auntil(lambda: len(began) == 2)
        gate.set()
        await auntil(lambda: not engine._leases)

    with_engine(story)

    assert began == [str(run_id) for run_id in (ready[0].id, dead.run_id, ready[1].id, ready[2].id)]


def expire(lease):
    Run.objects.filter(id=lease.run_id).update(lease_expires_at="2020-01-01T00:00:00Z")


def test_a_process_that_found_nothing_looks_no_more_after_each_run(monkeypatch):
    code(ask, model=ScriptedModel(["hello"]))
    looks = []
    claim_next = world.claim_next
    world.patch(monkeypatch, "claim_next", lambda *args, **kwargs: looks.append(1) or claim_next(*args, **kwargs))

    async def story(engine):
        for _ in range(3):
            await engine.hint((await engine.database.call(make_run)).id)
            await auntil(lambda: not engine._leases)

    with_engine(story)

    assert statuses() == ["completed"] * 3
    assert len(looks) <= 1


@on_postgresql
def test_hundreds_in_flight_share_a_few_connections(settings):
    gate, began = None, []

    @tool
    async def hold() -> str:
        """Hold."""
        began.append(1)
        await gate.wait()
        return ""

    async def story_code(ctx, inbox):
        return (await ctx.tool("hold")).text

    code(story_code, tools=[hold])
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
        nonlocal gate
        gate = asyncio.Event()
        engine.look()
        await auntil(lambda: len(began) == 100)
        found = await asyncio.to_thread(lambda: in_background(sessions).result(BOUND_S))
        gate.set()
        await auntil(lambda: not engine._leases)
        return found

    warm.close()  # its connections are not this engine's
    found, in_transaction = with_engine(story)

    assert found <= 8
    assert in_transaction == 0
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

    drive(run)

    assert run.status == Status.BLOCKED


def test_a_worker_is_listed_while_it_lives():
    async def story(engine):
        await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(BOUND_S))
        return await asyncio.to_thread(
            lambda: in_background(lambda: list(WorkerProcess.objects.values_list("name", flat=True))).result(BOUND_S)
        ), engine.name

    listed, name = with_engine(story)

    assert listed == [name]
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


@pytest.mark.sqlite
def test_runtime_drives_what_is_submitted_to_it_and_gives_the_output():
    async def main():
        async with Runtime() as rt:
            await rt.register(agent)
            run_id = await rt.submit(agent.id, "hi")
            return await rt.result(run_id, timeout=BOUND_S)

    agent = code(ask, model=ScriptedModel(["hello"]))

    assert asyncio.run(main()) == "hello"


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


def test_runtime_finds_runs_that_others_submitted():
    async def main():
        async with Runtime(poll_s=0.05) as rt:
            await asyncio.to_thread(lambda: in_background(submitted).result(BOUND_S))
            await auntil(lambda: rt.engine._leases or settled())
            while not settled():
                await asyncio.sleep(0.02)

    def submitted():
        return make_run().id

    def settled():
        return model.calls and not store_has_work()

    def store_has_work():
        return in_background(lambda: Run.objects.exclude(status=Status.COMPLETED).exists()).result(BOUND_S)

    model = ScriptedModel(["hello"])
    code(ask, model=model)

    asyncio.run(asyncio.wait_for(main(), BOUND_S))

    assert statuses() == ["completed"]
