"""Sync tools that hang: their threads are lost, the worker goes on."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import ToolRefused
from ravi_django.models import Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.runs import BOUND_S, auntil, code, drive, make_run
from tests.support.world import ToolThreads, Unhealthy, tool_threads_hanging


@pytest.fixture
def held():
    event = threading.Event()
    yield event
    event.set()


async def hang(pool, held, count=1):
    """Calls that are given up while they run."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        begun = loop.create_future()

        def begin(begun):
            loop.call_soon_threadsafe(begun.set_result, None)
            held.wait(BOUND_S)

        call = asyncio.ensure_future(pool.run(begin, begun))
        await asyncio.wait_for(begun, BOUND_S)
        call.cancel()
        await asyncio.wait([call])


def in_loop(story):
    return asyncio.run(asyncio.wait_for(story(), BOUND_S))


def test_at_the_bound_nobody_waits_for_ever(held, monkeypatch):
    world.patch(monkeypatch, "LOST_PER_THREAD", 1)

    async def story():
        pool = ToolThreads(2)
        await hang(pool, held, 3)
        begun = threading.Event()
        last = asyncio.ensure_future(pool.run(lambda: (begun.set(), held.wait(BOUND_S))))
        await auntil(begun.is_set)
        waits = asyncio.ensure_future(pool.run(lambda: "ran"))
        await asyncio.sleep(0)
        last.cancel()
        with pytest.raises(ToolRefused, match="not run: 4 calls of tools hang"):
            await waits
        assert pool.is_exhausted
        assert tool_threads_hanging() == (4, True)
        with pytest.raises(Unhealthy, match="4 calls of tools hang"):
            world.health_worker()
        with pytest.raises(ToolRefused, match="no thread left"):
            await pool.run(lambda: "ran")
        held.set()
        await auntil(lambda: pool.lost == 0)
        return await pool.run(lambda: "ran")

    assert in_loop(story) == "ran"


def test_a_lost_thread_is_replaced_and_told_and_those_that_come_back_do_not_add_up(held, caplog):
    async def story():
        pool = ToolThreads(2)
        await hang(pool, held, 3)
        assert pool.lost == 3
        assert await pool.run(lambda: threading.current_thread().name) == "ravi-tool_4"
        held.set()
        await auntil(lambda: pool.lost == 0)
        meeting = threading.Barrier(2)
        together = [asyncio.ensure_future(pool.run(meeting.wait, BOUND_S)) for _ in range(2)]
        await asyncio.gather(*together)
        await auntil(lambda: pool._live <= 2)
        return pool._live

    with caplog.at_level(logging.WARNING, "ravi.tools"):
        assert in_loop(story) in (1, 2)
    assert [record.action for record in caplog.records] == ["tool.thread_lost"] * 3


def test_without_a_new_thread_one_at_work_makes_the_call_and_a_lost_one_keeps_nobody_waiting(held, monkeypatch):
    """From Python 3.12 on none is started while the interpreter ends."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    async def story():
        pool, begun, go = ToolThreads(2), threading.Event(), threading.Event()
        first = asyncio.ensure_future(pool.run(lambda: (begun.set(), go.wait(BOUND_S))))
        await auntil(begun.is_set)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        second = asyncio.ensure_future(pool.run(lambda: "ran"))
        await asyncio.sleep(0)
        go.set()
        await first
        await world.on_thread(go.clear)
        assert (await second, go.is_set()) == ("ran", False)

        await hang(pool, held)
        with pytest.raises(RuntimeError, match="can't start"):
            await pool.run(lambda: "ran")

    in_loop(story)


def test_a_call_given_up_before_it_began_is_not_made(held, ran):
    async def story():
        pool = ToolThreads(1)
        begun = threading.Event()
        first = asyncio.ensure_future(pool.run(lambda: (begun.set(), held.wait(BOUND_S))))
        await auntil(begun.is_set)
        second = asyncio.ensure_future(pool.run(ran.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        held.set()
        await first
        await pool.run(ran.append, "third")
        return pool.lost

    assert in_loop(story) == 0
    assert ran == ["third"]


def test_a_process_ends_though_a_tool_hangs():
    program = """
import asyncio, threading
from tests.support.world import ToolThreads

async def main():
    pool, begun = ToolThreads(1), threading.Event()
    call = asyncio.ensure_future(pool.run(lambda: (begun.set(), threading.Event().wait())))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    call.cancel()
    pool.close()
    print("closed")

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND_S * 2)
    assert (ended.stdout, ended.returncode) == ("closed\n", 0), ended.stderr


@pytest.mark.django_db(transaction=True)
def test_more_tools_that_hang_than_there_are_threads_do_not_stop_a_run(settings, held, ran):
    settings.RAVI = {**settings.RAVI, "TOOL_THREADS": 2}

    @tool(timeout=0.05)
    def hang() -> str:
        held.wait(BOUND_S)

    @tool
    def work() -> str:
        return "worked"

    async def story(ctx, inbox):
        found = await asyncio.gather(*(ctx.tool("hang") for _ in range(5)))
        return f"{found[-1].text}; {(await ctx.tool('work')).text}"

    code(story, tools=[hang, work])
    run = drive(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, "hang did not finish within 0.05 s; worked")


@pytest.mark.parametrize("effect", ["idempotent", "transactional"])
@pytest.mark.django_db(transaction=True)
def test_a_run_for_which_no_thread_is_left_goes_back_for_another_worker(
    effect, settings, held, ran, clock, monkeypatch
):
    settings.RAVI = {**settings.RAVI, "TOOL_THREADS": 1}
    world.patch(monkeypatch, "LOST_PER_THREAD", 0)

    @tool(timeout=0.05)
    def hang() -> str:
        held.wait(BOUND_S)

    @tool(effect=effect)
    def work() -> str:
        ran.append("work")
        return "worked"

    async def story(ctx, inbox):
        return f"{(await ctx.tool('hang')).text}; {(await ctx.tool('work')).text}"

    code(story, tools=[hang, work])
    room = []

    def setup(engine):
        monkeypatch.setattr(engine, "_hint_after", lambda *_: room.append(engine.has_room))

    run = drive(make_run(), setup=setup)
    assert (run.status, run.attempts, ran, room) == (Status.PENDING, 0, [], [False])
    assert journal_of(run)[-1].error["type"] == "NoThreadLeft"
    clock.advance(conf.SWEEP_S + 60)
    run = drive(run)
    assert (run.status, ran) == (Status.COMPLETED, ["work"])
    assert run.output == "hang did not finish within 0.05 s; worked"
