"""A worker drops a run whose lease is over, and gives its runs back when it drains."""

import asyncio
import threading
import time

import pytest

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import RunContext
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.arriving import arrive
from tests.support.gates import Gate, drained, steal
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import code, drive, in_background, leased, make_run, take_over
from tests.support.tool_calls import calling
from tests.support.world import Active, Engine, append_repeatable

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_worker_that_lost_its_lease_cannot_be_made_to_go_on_by_the_agents_code(clock, ran, step):
    swallowed = []

    async def greedy(ctx, inbox):
        for number in range(3):
            try:
                await ctx.tool("step", name=str(number))
            except Exception as error:
                swallowed.append(error)
            if number == 0:
                await asyncio.to_thread(lambda: in_background(steal, run).result(BOUND_S))
        return "wrong"

    code(greedy, tools=[step])
    run = make_run()
    drive(run)
    assert (swallowed, ran) == ([], ["0"]), "done, but not recorded: nothing after it"
    assert (run.status, run.lease_owner, run.output) == (Status.RUNNING, "thief", None)
    assert not JournalEntry.objects.filter(kind="tool.call").exists()


def test_a_stolen_run_is_dropped_by_the_next_heartbeat():
    held = Gate()
    code(calling("hold"), tools=[held.tool()])

    async def main():
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(run.id))
            await asyncio.wait_for(held.began.wait(), BOUND_S)
            await asyncio.to_thread(lambda: in_background(steal, run).result(BOUND_S))
            await asyncio.to_thread(lambda: in_background(engine.heartbeat.beat).result(BOUND_S))
            done, _ = await asyncio.wait({driving}, timeout=seconds(10))
            assert done
        finally:
            await engine.close(drain_s=0)

    run = make_run()
    asyncio.run(main())

    run.refresh_from_db()
    assert run.lease_owner == "thief"
    assert not JournalEntry.objects.filter(kind__in=["tool.call", "run.completed"]).exists()


def test_a_run_that_is_still_being_loaded_when_its_engine_ends_is_given_back(monkeypatch):
    """Its code would begin too late to be stopped, and the end would wait for it."""
    began, loading, held, load = [], threading.Event(), threading.Event(), world.load_with_wake_state

    def slowly(*args):
        loading.set()
        assert held.wait(BOUND_S)
        return load(*args)

    async def story(ctx, inbox):
        began.append(ctx.run_id)

    async def main():
        engine = Engine()
        engine.hint(run.id)
        assert await asyncio.to_thread(loading.wait, BOUND_S)
        asyncio.get_running_loop().call_later(0.1, held.set)
        await engine.close(drain_s=0)

    world.patch(monkeypatch, "load_with_wake_state", slowly)
    code(story)
    run = make_run()
    world.requeue(leased(run))  # a first lease reads nothing more
    asyncio.run(main())

    run.refresh_from_db()
    assert (began, run.status) == ([], Status.PENDING)


def test_no_effect_begins_on_a_lease_that_was_not_renewed_for_long(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="fresh")
        ctx.recorder.state.renewed_at = time.monotonic() - conf.LEASE_S
        await ctx.tool("step", name="stale")

    code(story, tools=[step])
    run = drive(make_run())
    assert (run.status, ran) == (Status.RUNNING, ["fresh"])
    assert (take_over(clock, run).status, ran) == (Status.RUNNING, ["fresh"]), "the same again"


def test_a_recorded_call_needs_no_fresh_lease(clock, ran, step):
    async def story(ctx, inbox):
        ctx.recorder.state.renewed_at = time.monotonic() - (conf.LEASE_S if ran else 0)
        return (await ctx.tool("step", name="once")).text

    code(story, tools=[step])
    assert take_over(clock, drive(make_run(), dies="end")).output == "once"
    assert ran == ["once"]


def test_a_call_cancelled_while_its_row_is_written_ends_when_it_is(clock, ran, step):
    """Times, log entries and history turns ride on the row, and what comes after must not overtake it."""
    seen, written, asked = [], [], []
    free = threading.Event()

    async def story(ctx, inbox):
        seen.append(ctx.now())
        asked.append(asyncio.Event())
        loser = asyncio.create_task(ctx.tool("step", name="loser"))
        asking = asyncio.create_task(asked[-1].wait())
        await asyncio.wait([loser, asking], return_when=asyncio.FIRST_COMPLETED)
        loser.cancel()
        asyncio.get_running_loop().call_later(0.05, free.set)
        await asyncio.wait([loser])
        written.append(await asyncio.to_thread(lambda: in_background(JournalEntry.objects.count).result(BOUND_S)))
        return (await ctx.tool("step", name="winner")).text

    def all_threads_are_busy(engine):
        start = engine.database._start

        def busy(function, args, kwargs):
            if function is append_repeatable and not free.is_set():
                for _ in range(conf.DB_THREADS):
                    start(free.wait, (10,), {})
                engine.loop.call_soon(asked[-1].set)
            return start(function, args, kwargs)

        engine.database._start = busy

    code(story, tools=[step])
    run = drive(make_run(), dies="end", setup=all_threads_are_busy)
    assert written == [3]  # run.started, now, tool.call

    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "winner"), run.error
    assert seen[0] == seen[1]
    assert ran == ["loser", "winner"]


def test_a_lease_that_ends_late_leaves_the_next_one_of_the_same_process_alone():
    async def main():
        engine = Engine()
        try:
            engine.active[new.run_id] = Active(new, None)
            engine._forget(old)
            assert engine.active[new.run_id].lease is new
            engine._forget(new)
            assert not engine.active
        finally:
            await engine.close(drain_s=0)

    old = leased()
    world.requeue(old)
    new = leased(old.run)

    asyncio.run(main())


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
    run = drained(make_run(), calling("hold"), while_draining=lambda gate: gate.open.set())
    assert (run.status, run.output) == (Status.COMPLETED, "ok: hold")


def test_a_message_that_the_code_has_not_received_outlives_a_drain(clock, ran, step):
    """It arrived in an earlier lease, behind the round that this lease replays."""
    rounds = []

    async def story(ctx, inbox):
        rounds.append([message.payload.message.text for message in inbox])
        await ctx.tool("step", name=inbox[0].payload.message.text)
        if ctx.recorder.lease.epoch == 2:
            ctx.recorder.waits.drain()
        return "done"

    code(story, tools=[step])
    run = drive(make_run(), dies="end")
    arrive(run, "second")

    drained_run = take_over(clock, run)
    assert drained_run.status == Status.PENDING
    assert drive(run).status == Status.COMPLETED
    assert rounds[-1] == ["second"]


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
    async def main():
        engine = Engine()
        await engine.close()
        assert not await engine.drive(run.id)
        assert engine.hint(run.id) is None
        engine.look()

    run = make_run()
    asyncio.run(main())
    assert Run.objects.get(id=run.id).status == Status.PENDING


def test_turns_and_notes_in_hand_are_written_when_a_worker_drains(clock):
    async def story(ctx, inbox):
        await ctx.tool("hold")
        await ctx.log("note", 1)
        ctx.now()
        await ctx.tool("hold", name="again")

    run = drained(make_run(), story, while_draining=lambda gate: gate.open.set())
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "tool.call", "log", "now"]
    gate = Gate()
    gate.open.set()
    code(story, tools=[gate.tool()])
    assert drive(run).status == Status.COMPLETED
