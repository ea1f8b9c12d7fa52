"""A worker whose lease is over drops the run: nothing begins, nothing is recorded."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage
from ravi_django.models import JournalEntry, Status
from tests.support import world
from tests.support.gates import Gate, steal
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import code, drive, in_background, leased, make_run, take_over
from tests.support.world import Active, Engine, append_repeatable

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


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
