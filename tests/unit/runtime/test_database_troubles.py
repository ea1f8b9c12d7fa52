"""The database is away, full, locked, or has no time: what the code asked for is asked again, and it sees nothing."""

import asyncio
import time
from dataclasses import replace

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ChatMessage, RunContext
from ravi_django.models import HumanRequest, JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, drive, idle, in_background, make_run, patch_append, take_over
from tests.support.tool_calls import calling
from tests.support.world import DjangoHistoryProvider, Engine

pytestmark = pytest.mark.django_db(transaction=True)

CODE = AgentId("test", "code")


def timed_out() -> OperationalError:
    error = OperationalError("canceling statement due to statement timeout")
    error.__cause__ = psycopg.errors.QueryCanceled(str(error))
    return error


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    world.patch(monkeypatch, "DATABASE_REPEAT_S", 0.0)


class Faults:
    """Counts the calls of the database threads behind the claim, and fails the one with the number, or the first of the
    function, `at`."""

    def __init__(self, at: int | str | None = None, error: Exception | None = None) -> None:
        self.at, self.calls, self.failed = at, 0, ""
        self.error = error or timed_out()

    def __call__(self, engine):
        self.worker, call = engine.name, engine.database.call

        async def calling(function, *args, **kwargs):
            if function is not world.claim:
                self.calls += 1
                name = getattr(function, "__qualname__", "?")
                if self.at in (self.calls, name) and not self.failed:
                    self.failed = name
                    raise self.error
            return await call(function, *args, **kwargs)

        engine.database.call = calling


@pytest.fixture
def swallowed():
    return []


async def done(ctx, inbox):
    return "done"


@pytest.fixture
def story(ran, swallowed):
    """Code that asks the database in many ways, and would swallow every error."""

    @tool(effect="at_most_once")
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    async def story(ctx, inbox):
        async def told(awaitable):
            try:
                return await awaitable
            except Exception as error:
                swallowed.append(error)

        history = DjangoHistoryProvider()
        await told(history.seed(CODE, ctx.session_id, [ChatMessage.of("user", "before")]))
        found = [len(await told(history.get(CODE, ctx.session_id)))]
        child = await told(ctx.spawn(CODE, "below"))
        await told(ctx.send(child, "more"))
        found.append((await told(ctx.tool("pay"))).text)
        found.append(len(await told(ctx.receive())))
        return str(found)

    code(story, tools=[pay])


def ended(clock, run, faults):
    drive(run, setup=faults)
    while run.status not in (Status.COMPLETED, Status.FAILED):
        take_over(clock, run)
    return run


def test_no_call_that_times_out_is_the_runs_end_or_comes_to_its_code(clock, story, ran, swallowed):
    """At each call of the database in turn."""
    whole = Faults()
    expected = ended(clock, make_run(), whole).output
    failed = set()
    for at in range(1, whole.calls + 1):
        ran.clear()
        faults = Faults(at)

        run = ended(clock, make_run(), faults)

        assert (run.status, run.output, run.error, ran, swallowed) == ("completed", expected, None, ["paid"], [])
        failed.add(faults.failed)
    assert failed >= {"seed", "is_reachable", "write"}, failed


def test_a_tool_that_has_begun_goes_on(ran):
    """Its call is at-most-once: another lease would have to ask a person."""

    @tool(effect="at_most_once")
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        ran.append("paid")
        return str(len(await DjangoHistoryProvider().get(CODE, ctx.session_id)))

    async def story(ctx, inbox):
        await DjangoHistoryProvider().seed(CODE, ctx.session_id, [ChatMessage.of("user", "before")])
        return (await ctx.tool("pay")).text

    code(story, tools=[pay])
    faults = Faults("read")

    run = drive(make_run(), setup=faults)
    assert (run.output, ran, run.lease_epoch, faults.failed) == ("1", ["paid"], 1, "read")


def test_a_permanent_error_fails_the_run():
    async def story(ctx, inbox):
        await ctx.send(await ctx.spawn(CODE, "below"), "more")

    code(story)

    run = drive(make_run(), setup=Faults("is_reachable", ProgrammingError("there is no such column")))
    assert (run.status, run.error["type"]) == (Status.FAILED, "ProgrammingError")


def test_a_lease_whose_end_could_not_be_written_is_no_crash_of_its_run(clock):
    code(done)
    faults = Faults("write")
    run = drive(make_run(), setup=faults)
    clock.now = run.lease_expires_at
    clock.advance(1)
    world.worker_seen(faults.worker, 1)
    lease = world.claim(run.id, "next")
    assert (run.status, lease.run.crashes) == (Status.RUNNING, 0)


@pytest.mark.parametrize(("failures", "status"), [(1, Status.COMPLETED), (3, Status.FAILED)])
def test_a_query_of_the_codes_own_that_times_out_is_retried(clock, settings, ran, failures, status):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 3}

    async def story(ctx, inbox):
        ran.append(1)
        if len(ran) <= failures:
            raise timed_out()

    code(story)
    assert (ended(clock, make_run(), lambda engine: None).status, len(ran)) == (status, failures + (failures < 3))


def test_an_answer_is_looked_up_until_that_can_be_done(clock, swallowed):
    """It came before the end of its time, and behind the load of a lease that would end the wait."""

    async def story(ctx, inbox):
        try:
            told = await ctx.ask_human("May I?", timeout=60)
        except Exception as error:
            swallowed.append(error)
        return told["text"]

    def late(engine):
        Faults("later_than")(engine)
        call = engine.database.call

        async def answering(function, *args, **kwargs):
            found = await call(function, *args, **kwargs)
            if function is world.load_with_wake_state:
                request = HumanRequest.objects.get
                await asyncio.to_thread(in_background(lambda: world.answer(request().id, text="yes")).result, BOUND_S)
                clock.advance(60)
            return found

        engine.database.call = answering

    code(story)
    run = drive(make_run())
    Run.objects.filter(id=run.id).update(wake_at=clock.now)
    drive(run, setup=late)

    assert (run.status, run.output, swallowed) == (Status.COMPLETED, "yes", [])


# ------------------------------------------------------------------------------------------ results outlast an absence


@pytest.fixture
def away(monkeypatch):
    """While it is set, the database takes no result. It holds how often that was tried."""
    append, is_away = world.fence_append, asyncio.Event()
    is_away.tries = 0
    is_away.set()

    def appending(lease, entries, turns):
        if is_away.is_set() and entries[-1].phase == "result" and entries[-1].name == "pay":
            is_away.tries += 1
            raise OperationalError("the server is away")
        return append(lease, entries, turns)

    world.patch(monkeypatch, "DATABASE_RETRY_S", 0.0)
    world.patch(monkeypatch, "EFFECTS_REPEAT_S", 0.001)
    patch_append(monkeypatch, appending)
    return is_away


@pytest.fixture
def paid():
    return []


@pytest.fixture
def pay(paid):
    @tool(effect="at_most_once")
    async def pay(number: int = 1) -> str:
        """Pay."""
        paid.append(number)
        return "paid"

    return pay


async def came_back(away, tries):
    await auntil(lambda: away.tries >= tries)
    away.clear()


def test_twenty_results_outlast_an_absence_of_the_database(away, paid, pay):
    async def story(ctx, inbox):
        back = asyncio.create_task(came_back(away, 100))
        results = await asyncio.gather(*(ctx.tool("pay", number=number) for number in range(20)))
        await back
        return str({result.text for result in results})

    code(story, tools=[pay])

    run = drive(make_run())
    assert (run.status, run.output, sorted(paid)) == (Status.COMPLETED, "{'paid'}", list(range(20)))
    assert not HumanRequest.objects.exists()


def test_meanwhile_the_run_begins_nothing_new(away, paid, pay, ran, step):
    begun_while_away = []

    async def story(ctx, inbox):
        paying = asyncio.create_task(ctx.tool("pay", number=1))
        await auntil(lambda: away.tries > 1)  # the first has failed
        stepping = asyncio.create_task(ctx.tool("step", name="next"))
        await auntil(lambda: away.tries > 20)
        begun_while_away.extend(ran)
        away.clear()
        await asyncio.gather(paying, stepping)

    code(story, tools=[pay, step])

    run = drive(make_run())
    assert (run.status, begun_while_away, ran) == (Status.COMPLETED, [], ["next"])


def test_a_cancellation_comes_after_the_row(away, paid, pay):
    async def story(ctx, inbox):
        paying = asyncio.create_task(ctx.tool("pay", number=1))
        await auntil(lambda: away.tries > 3)
        paying.cancel()
        await auntil(lambda: away.tries > 10)
        away.clear()
        await asyncio.wait([paying])
        return str(paying.cancelled())

    code(story, tools=[pay])
    assert drive(make_run()).output == "True"
    assert JournalEntry.objects.filter(kind="tool.call", phase="result").count() == 1


def test_a_worker_that_has_drained_gives_up(away, paid, pay):
    async def main():
        engine = Engine()
        driving = engine.hint(run.id)
        await auntil(lambda: away.tries > 3)
        await asyncio.wait_for(engine.close(drain_s=0), BOUND_S)
        await asyncio.wait_for(driving, BOUND_S)

    code(calling("pay"), tools=[pay])
    run = make_run()
    asyncio.run(main())

    run.refresh_from_db()
    assert (run.status, paid) == (Status.RUNNING, [1])


def test_a_call_whose_model_s_own_query_has_failed_is_made_again_by_the_next_attempt(clock):
    async def story(ctx, inbox):
        return (await ctx.llm([ChatMessage.of("user", "hi")])).text

    async def keyed(messages, options):
        asked.append("the key")
        if len(asked) == 1:
            raise OperationalError("the server is away")
        return "ok"

    asked = []
    code(story, model=ScriptedModel([keyed], loop=True))
    run = idle(make_run())
    assert run.status == Status.PENDING
    clock.advance(60)
    run = idle(run)

    assert (run.status, run.output) == (Status.COMPLETED, "ok")
    assert [entry.error for entry in JournalEntry.objects.filter(kind="llm.call")] == [None]


def test_a_worker_whose_heartbeat_failed_claims_nothing(settings):
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 0.05}

    def fails():
        raise OperationalError("the server is away")

    async def main():
        engine = Engine()
        beat = engine.heartbeat.beat
        engine.heartbeat.beat = fails
        try:
            await auntil(lambda: engine.heartbeat.failed)
            refused = await engine.drive(run.id)
            engine.heartbeat.beat = beat
            await auntil(lambda: not engine.heartbeat.failed)
            return refused, await engine.drive(run.id)
        finally:
            await engine.close(drain_s=0)

    code(done)
    run = make_run()
    assert asyncio.run(main()) == (False, True)


@pytest.mark.parametrize("held_up", ["claim", "load_with_wake_state"])
def test_the_time_of_the_load_counts_against_the_lease(monkeypatch, ran, step, held_up):
    """A worker that was held up between its claim and its first effect does not act on a lease that may be over."""
    late = 0.0
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + late)

    def setup(engine):
        call = engine.database.call

        async def slow(function, *args, **kwargs):
            nonlocal late
            if function.__name__ == held_up:
                late = conf.LEASE_S
            found = await call(function, *args, **kwargs)
            return replace(found, asked_at=time.monotonic()) if function is world.claim else found

        engine.database.call = slow

    code(calling("step", name="late"), tools=[step])
    assert drive(make_run(), setup=setup).status == Status.RUNNING
    assert ran == []
