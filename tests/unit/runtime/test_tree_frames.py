"""The frames of a whole tree: begun before a child can be had, whole before its end."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ravi_django import register
from ravi_django.kernel import AgentId
from ravi_django.models import Run, Status
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, leased, make_run, until
from tests.support.world import Publisher, Source, cancel, frames_delta

pytestmark = pytest.mark.django_db(transaction=True)

CHILD = AgentId("test", "child")


def steps(run: Run) -> list[tuple[str, str, str]]:
    """(run, step, status) of the tree's progress, and its end."""
    found = world.events_page(run.id)[0]
    assert [frame["seq"] for frame in found] == list(range(1, len(found) + 1))
    return [
        (frame["run"], frame.get("step", frame["type"]), (frame.get("content") or {}).get("status", ""))
        for frame in found
        if frame["type"] in ("progress", "stream.done")
    ]


async def stay(ctx: Any, inbox: Any) -> Any:
    return await ctx.sleep_until_signal("go")


def test_a_child_that_another_process_has_at_once_finds_the_stream_begun(settings: Any, monkeypatch: Any) -> None:
    settings.RAVI = {**settings.RAVI, "STREAM_FLUSH_S": 60.0}
    out: list[int] = []
    spawn = world.spawn

    def spawning(lease: world.Lease, *args: Any, **kwargs: Any) -> int:
        out.append(len(world.events_page(lease.run.id)[0]))
        return spawn(lease, *args, **kwargs)

    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.spawn(CHILD, "work")

    other = leased().run

    def flushed_just_now(engine: Any) -> None:
        engine.publisher.open(other)
        engine.publisher.emit(frames_delta(Source.of(other), "text.delta", "a", call="1", attempt="1"))
        until(lambda: world.get_buffer().read(str(other.id), 0, 1))

    world.patch(monkeypatch, "spawn", spawning)
    register(CodeAgent(stay, key="child"))
    code(story)
    drive(make_run(), setup=flushed_just_now)

    assert out == [1]


def test_nobody_waits_for_a_tree_that_has_nothing_to_send() -> None:
    publisher = Publisher(world.get_buffer())
    run = leased().run
    publisher.open(run)

    asyncio.run(asyncio.wait_for(publisher.sent(str(run.id), timeout=math.inf), BOUND_S))
    publisher.close()


def test_what_another_process_has_not_sent_of_a_child_is_out_before_the_end() -> None:
    async def work(ctx: Any, inbox: Any) -> str:
        return "done"

    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(CHILD, "work")).result)

    register(CodeAgent(work, key="child"))
    code(story)
    run = drive(make_run())
    child = Run.objects.get(parent=run)
    drive(child, setup=lambda engine: setattr(engine.publisher, "emit", lambda *frames: None))  # dies over sending

    drive(run)

    found = steps(run)
    assert (str(child.id), "started", "") in found and (str(child.id), "done", "") in found
    assert found[-1] == (str(run.id), "stream.done", "")


def test_a_child_that_is_cancelled_with_its_parent_says_so() -> None:
    async def lead(ctx: Any, inbox: Any) -> None:
        await ctx.spawn(AgentId("test", "hand"), "stay")
        await ctx.sleep_until_signal("go")

    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(CHILD, "lead")).kind)

    register(CodeAgent(stay, key="hand"))
    register(CodeAgent(lead, key="child"))
    code(story)
    run = make_run()
    run_until_idle()
    child = Run.objects.get(parent=run)
    hand = Run.objects.get(parent=child)

    world.send_signal(child.id, "go", None)
    run_until_idle()

    found = steps(run)
    assert found.count((str(hand.id), "error", "cancelled")) == 1
    assert found[-1][1] == "stream.done"


def test_cancelling_a_child_that_waits_is_told_at_once() -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(CHILD, "work")).kind)

    register(CodeAgent(stay, key="child"))
    code(story)
    run = make_run()
    run_until_idle()
    child = Run.objects.get(parent=run)

    cancel(child.id, "enough")

    assert steps(run)[-1] == (str(child.id), "error", "cancelled")
    assert Run.objects.get(id=run.id).status == Status.PENDING
