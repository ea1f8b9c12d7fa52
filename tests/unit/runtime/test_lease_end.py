"""How a lease ends before the agent does: lost, drained, cancelled, past its deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, RunContext
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.runtime import store
from ravi_django.runtime.engine import Engine
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import adrive, auntil, code, drive, in_background, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")
EMPTY = [USER]


@pytest.fixture
def ran():
    return []


@pytest.fixture
def step(ran):
    @tool
    async def step(name: str) -> str:
        """Step."""
        ran.append(name)
        return name

    return step


def steal(run):
    """Another worker claims the run, as if the lease had expired."""
    Run.objects.filter(id=run.id).update(lease_expires_at="2000-01-01T00:00:00Z")
    assert store.claim(run.id, "thief") is not None


class Gate:
    """A tool call that stands open until the test lets it go."""

    def __init__(self):
        self.began = asyncio.Event()
        self.open = asyncio.Event()

    def tool(self):
        @tool(timeout=30)
        async def hold(name: str = "hold") -> str:
            """Hold."""
            self.began.set()
            await self.open.wait()
            return name

        return hold


# --------------------------------------------------------------------------------------------------- lost


def test_a_worker_that_lost_its_lease_cannot_be_made_to_go_on_by_the_agents_code(clock, ran, step):
    swallowed = []

    async def greedy(ctx, inbox):
        for number in range(3):
            try:
                await ctx.tool("step", name=str(number))
            except Exception as error:
                swallowed.append(error)
            if number == 0:
                await asyncio.to_thread(lambda: in_background(steal, run).result(10))
        return "wrong"

    code(greedy, tools=[step])
    run = make_run()

    drive(run)

    assert swallowed == []
    assert ran == ["0", "1"]  # done, but not recorded: nothing after it
    assert (run.status, run.lease_owner, run.output) == (Status.RUNNING, "thief", None)
    assert JournalEntry.objects.filter(kind="tool.call").count() == 1


def test_a_stolen_run_is_dropped_by_the_next_heartbeat():
    gate = Gate

    async def main():
        held = gate()

        async def story(ctx, inbox):
            await ctx.tool("hold")

        code(story, tools=[held.tool()])
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(run.id))
            await asyncio.wait_for(held.began.wait(), 10)
            await asyncio.to_thread(lambda: in_background(steal, run).result(10))
            await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(10))
            assert await asyncio.wait_for(driving, 10)
        finally:
            await engine.close(drain_s=0)

    run = make_run()
    asyncio.run(main())

    run.refresh_from_db()
    assert run.lease_owner == "thief"
    assert not JournalEntry.objects.filter(kind__in=["tool.call", "run.completed"]).exists()


def test_no_effect_begins_on_a_lease_that_was_not_renewed_for_long(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="fresh")
        ctx.effects.renewed_at = time.monotonic() - conf.LEASE_S
        await ctx.tool("step", name="stale")

    code(story, tools=[step])

    run = drive(make_run())

    assert ran == ["fresh"]
    assert run.status == Status.RUNNING
    assert take_over(clock, run, setup=lambda engine: None).status == Status.RUNNING  # the same again
    assert ran == ["fresh"]


def test_a_recorded_call_needs_no_fresh_lease(clock, ran, step):
    async def story(ctx, inbox):
        ctx.effects.renewed_at = time.monotonic() - (conf.LEASE_S if ran else 0)
        return (await ctx.tool("step", name="once")).text

    code(story, tools=[step])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "once"
    assert ran == ["once"]


# -------------------------------------------------------------------------------------------------- drained


def drained(run, agent_code, *, tools=(), model=None, while_draining=None, drain_s=5.0):
    """Drive the run, and close the worker while the held call is open."""
    gate = None

    async def main():
        nonlocal gate
        gate = Gate()
        code(agent_code, tools=[gate.tool(), *tools], model=model)
        engine = Engine()
        driving = engine.hint(run.id)
        await asyncio.wait_for(gate.began.wait(), 10)
        closing = asyncio.create_task(engine.close(drain_s))
        await auntil(lambda: engine.draining)
        if while_draining is not None:
            while_draining(gate)
        await asyncio.wait_for(closing, 20)
        await asyncio.wait_for(driving, 1)

    asyncio.run(main())
    run.refresh_from_db()
    return run


@pytest.mark.sqlite
def test_a_drained_worker_records_what_is_open_and_starts_nothing_new(clock, ran, step):
    async def story(ctx, inbox):
        first = await ctx.tool("step", name="first")
        held = await ctx.tool("hold")
        last = await ctx.tool("step", name="last")
        return first.text + held.text + last.text

    run = drained(make_run(), story, tools=[step], while_draining=lambda gate: gate.open.set())

    assert ran == ["first"]
    assert (run.status, run.crashes, run.attempts, run.wake_at) == (Status.PENDING, 0, 0, None)
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["step", "hold"]
    drive(run)
    assert (run.status, run.output, run.crashes) == (Status.COMPLETED, "firstholdlast", 0)
    assert ran == ["first", "last"]


def test_a_call_that_outlasts_the_drain_is_left_and_made_again(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        return (await ctx.tool("hold")).text

    run = drained(make_run(), story, tools=[step], drain_s=0.05)

    assert (run.status, run.crashes) == (Status.PENDING, 0)
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["step"]


def test_a_run_that_ends_while_its_worker_drains_is_completed(clock):
    async def story(ctx, inbox):
        return (await ctx.tool("hold")).text

    run = drained(make_run(), story, while_draining=lambda gate: gate.open.set())

    assert (run.status, run.output) == (Status.COMPLETED, "hold")


def test_what_an_open_tool_call_needs_may_begin_while_its_worker_drains(clock, ran, step):
    @tool(timeout=30)
    async def outer(ctx: RunContext) -> str:
        """Call two others, one after the other."""
        held = await ctx.tool("hold")
        return held.text + (await ctx.tool("step", name="inner")).text

    async def story(ctx, inbox):
        outer = await ctx.tool("outer")
        return outer.text + (await ctx.tool("step", name="last")).text

    run = drained(make_run(), story, tools=[step, outer], while_draining=lambda gate: gate.open.set())

    assert (run.status, ran) == (Status.PENDING, ["inner"])
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["hold", "step", "outer"]
    assert drive(run).output == "holdinnerlast"


def test_a_draining_worker_claims_nothing():
    run = make_run()

    async def main():
        engine = Engine()
        await engine.close()
        assert not await engine.drive(run.id)
        assert engine.hint(run.id) is None
        engine.look()

    asyncio.run(main())
    run.refresh_from_db()
    assert run.status == Status.PENDING


def test_turns_and_notes_in_hand_are_written_when_a_worker_drains(clock):
    async def story(ctx, inbox):
        await ctx.tool("hold")
        await ctx.log("note", 1)
        ctx.now()
        await ctx.tool("hold", name="again")

    run = drained(make_run(), story, while_draining=lambda gate: gate.open.set())

    assert [entry.kind for entry in journal_of(run)] == ["run.started", "tool.call", "log", "now"]
    assert drive_with_open_gate(run) == Status.COMPLETED


def drive_with_open_gate(run):
    """The next lease of a run that `drained` drove, with a call that ends at once."""
    from ravi_django.runtime.registry import get_agent

    async def main():
        gate = Gate()
        gate.open.set()
        get_agent(run.agent).tools[0] = gate.tool()
        await adrive(run)

    asyncio.run(main())
    run.refresh_from_db()
    return run.status


# ------------------------------------------------------------------------------------------------- cancelled


def cancelled_in(run, agent_code, *, tools=(), model=None, began=None):
    """Drive the run; cancel it once a call is open; returns it as it is then."""

    async def main():
        gate = Gate()
        code(agent_code, tools=[gate.tool(), *tools], model=model)
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(run.id))
            await (asyncio.wait_for(gate.began.wait(), 10) if began is None else auntil(began))
            await asyncio.to_thread(lambda: in_background(store.request_cancel, run.id, "enough").result(10))
            await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(10))
            await asyncio.wait_for(driving, 10)
        finally:
            await engine.close(drain_s=0)

    asyncio.run(main())
    run.refresh_from_db()
    return run


@pytest.mark.sqlite
def test_cancelling_reaches_a_model_call_that_hangs(clock):
    model = ScriptedModel(["late"], delay=60)

    async def story(ctx, inbox):
        return (await ctx.llm([USER])).text

    run = cancelled_in(make_run(), story, model=model, began=lambda: model.calls)

    assert (run.status, run.error["type"]) == (Status.CANCELLED, "Cancelled")
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.cancelled"]


def test_cancelling_reaches_an_open_tool_call(clock):
    async def story(ctx, inbox):
        return (await ctx.tool("hold")).text

    assert cancelled_in(make_run(), story).status == Status.CANCELLED


def test_cancelling_reaches_the_tasks_of_a_group(clock):
    async def story(ctx, inbox):
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.tool("hold"))
            group.create_task(ctx.tool("hold", name="other"))

    assert cancelled_in(make_run(), story).status == Status.CANCELLED


def test_check_sees_a_cancellation(clock):
    async def story(ctx, inbox):
        try:
            await ctx.tool("hold")
        except asyncio.CancelledError:
            ctx.check()

    assert cancelled_in(make_run(), story).status == Status.CANCELLED


def test_a_task_group_that_checks_is_cancelled_and_not_failed(clock):
    async def story(ctx, inbox):
        async def careful():
            try:
                await ctx.tool("hold")
            except asyncio.CancelledError:
                ctx.check()

        async with asyncio.TaskGroup() as group:
            group.create_task(careful())

    assert cancelled_in(make_run(), story).status == Status.CANCELLED


def test_a_run_cancelled_before_its_next_lease_does_nothing_more(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        await ctx.tool("step", name="second")

    code(story, tools=[step])
    run = drive(make_run(), dies=2)
    ran.clear()
    store.request_cancel(run.id, "enough")

    run = take_over(clock, run)

    assert (run.status, run.error) == (Status.CANCELLED, {"type": "Cancelled", "message": "enough"})
    assert ran == []


def test_the_next_run_of_the_session_goes_on_after_a_cancelled_one(clock):
    async def story(ctx, inbox):
        if run.id.hex == ctx.run_id.replace("-", ""):
            await ctx.tool("hold")
        return "second"

    run = make_run()
    second = make_run(session=run.session)
    cancelled_in(run, story)

    second.refresh_from_db()
    assert second.status in (Status.PENDING, Status.COMPLETED)  # the engine may have taken it at once


# ------------------------------------------------------------------------------------------------- deadline


def test_a_deadline_fails_the_run(clock):
    async def story(ctx, inbox):
        return (await ctx.llm([USER])).text

    code(story, model=ScriptedModel(["late"], delay=60))
    run = make_run(deadline=clock.now + timedelta(seconds=0.05))

    drive(run)

    assert run.status == Status.FAILED
    assert run.error == {"type": "DeadlineExceeded", "message": "the run's deadline passed before it ended"}


def test_a_budgets_deadline_counts_from_the_first_start(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        await ctx.tool("step", name="second")

    code(story, tools=[step])
    run = make_run(budget={"deadline_s": 20})
    drive(run, dies=2)

    run = take_over(clock, run)  # more than 20 s later

    assert (run.status, run.error["type"]) == (Status.FAILED, "DeadlineExceeded")


def test_a_run_in_time_meets_its_deadline(clock):
    async def story(ctx, inbox):
        assert ctx.meta.deadline == clock.now + timedelta(seconds=60)
        return "in time"

    code(story)

    assert drive(make_run(deadline=clock.now + timedelta(seconds=60))).output == "in time"


# ---------------------------------------------------------------------------------------------- left behind


def test_tasks_that_the_agent_leaves_behind_end_with_it(clock):
    ended = []

    async def story(ctx, inbox):
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        async def parent():
            inner = asyncio.create_task(forever())
            await inner

        left = [asyncio.create_task(forever()), asyncio.create_task(parent())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return f"left {len(left)}"

    code(story)

    run = drive(make_run())

    assert (run.output, ended) == ("left 2", [1, 1])


def test_a_call_that_is_left_open_at_the_agents_end_is_recorded_or_absent_but_never_after_it(clock):
    async def main():
        gate = Gate()

        async def story(ctx, inbox):
            left = asyncio.create_task(ctx.tool("hold"))
            await gate.began.wait()
            return f"done {left.done()}"

        code(story, tools=[gate.tool()])
        await adrive(run)

    run = make_run()
    asyncio.run(main())

    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.completed"]


# ------------------------------------------------------------------------------------------- cannot be driven


def test_an_unknown_agents_run_is_left_for_a_worker_that_knows_it(clock):
    run = make_run("test/nobody")

    with pytest.raises(AssertionError, match="could not be claimed"):
        drive(run)

    run.refresh_from_db()
    assert (run.status, run.attempts, run.lease_epoch) == (Status.PENDING, 0, 0)


def test_a_run_that_takes_its_workers_down_is_blocked(clock):
    async def story(ctx, inbox):
        return "never"

    code(story)
    run = make_run()
    for _ in range(conf.MAX_ATTEMPTS):
        drive(run, dies="end")
        clock.advance(conf.LEASE_S + 1)

    drive(run)

    assert (run.status, run.error["type"]) == (Status.BLOCKED, "AgentCrashError")
    assert f"run {run.id} of test/code took its worker down too often" in run.error["message"]


def test_an_agents_own_error_fails_the_run(clock):
    async def story(ctx, inbox):
        raise ValueError("a bug of the site's")

    code(story)

    run = drive(make_run())

    assert (run.status, run.error) == (Status.FAILED, {"type": "ValueError", "message": "a bug of the site's"})
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.failed"]


def test_the_one_error_of_a_task_group_is_named_as_it_is(clock):
    async def story(ctx, inbox):
        async def bad():
            raise ValueError("a bug of the site's")

        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    code(story)

    assert drive(make_run()).error == {"type": "ValueError", "message": "a bug of the site's"}


def test_a_call_cancelled_while_its_row_is_written_takes_nothing_with_it(clock, ran, step):
    """Times, log entries and history turns ride on the next row: losing it would lose them."""
    seen, queued, free = [], asyncio.Event, threading.Event()

    async def story(ctx, inbox):
        seen.append(ctx.now())
        writing = queued()
        asked.append(writing)
        loser = asyncio.create_task(ctx.tool("step", name="loser"))
        await asyncio.wait([loser, asyncio.create_task(writing.wait())], return_when=asyncio.FIRST_COMPLETED)
        loser.cancel()
        asyncio.get_running_loop().call_later(0.05, free.set)
        await asyncio.wait([loser])
        return (await ctx.tool("step", name="winner")).text

    asked = []

    def all_threads_are_busy(engine):
        see_through = engine.database.see_through

        async def busy(function, *args):
            if not free.is_set():
                for _ in range(conf.DB_THREADS):
                    engine.database._start(free.wait, (10,), {})
                asyncio.get_running_loop().call_soon(asked[-1].set)
            return await see_through(function, *args)

        engine.database.see_through = busy

    code(story, tools=[step])
    run = drive(make_run(), dies="end", setup=all_threads_are_busy)
    assert [entry.kind for entry in journal_of(run)][:3] == ["run.started", "now", "tool.call"]
    clock.advance(3)

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "winner"), run.error
    assert seen[0] == seen[1]
    assert ran == ["loser", "winner"]
