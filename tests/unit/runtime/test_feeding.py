"""Events become the signals of a run: never of what the run does itself, and never more than it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django import register, signal
from ravi_django.kernel import AgentId, Event
from ravi_django.models import Run, Signal, Status
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.runs import CodeAgent, auntil, code, drive, make_run
from tests.support.world import Bus, feed_agent, forget_buses, get_bus

pytestmark = pytest.mark.django_db(transaction=True)

HAND = AgentId("test", "hand")
NAME = "new_source_item"


@pytest.fixture(autouse=True)
def _site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory", "SOURCE_UNREAD": 2}
    world.silence(monkeypatch, "courier_hint")
    world.patch(monkeypatch, "BASE_RETRY_S", 0.001)
    world.patch(monkeypatch, "NOT_YET_S", (0.001, 0.01))
    yield
    forget_buses()


async def does(ctx: Any, inbox: Any) -> str:
    return "done"


async def spawns(ctx: Any, inbox: Any) -> None:
    """A child for each event."""
    while True:
        await ctx.sleep_until_signal(NAME)
        await ctx.join(await ctx.spawn(HAND, "look at it"))


def sold(number: int) -> Event:
    return Event.create("shop.sold", source="shop", number=number)


def on_the_bus(story: Callable[[Bus], Awaitable[None]]) -> None:
    async def told() -> None:
        bus = get_bus()
        try:
            await story(bus)
        finally:
            await bus.close()
            await sync_to_async(connections.close_all)()

    asyncio.run(told())


def is_done(bus: Any, id: str) -> bool:
    reader = bus._readers[id]
    return not reader.open and not reader.backlog.due


def numbers(run: Run) -> list[int]:
    """Of the events that the run has been told, read or not."""
    found = Signal.objects.filter(run=run, name=NAME).order_by("id").values_list("payload", flat=True)
    return [payload["data"]["number"] for payload in found]


def test_a_run_is_not_fed_what_its_children_do() -> None:
    """Each would have it begin another."""
    code(spawns)
    register(CodeAgent(does, key=HAND.key))
    run = drive(make_run())
    signal(run, NAME, {"first": True})
    run_until_idle()
    child = Run.objects.get(parent=run)

    async def story(bus: Bus) -> None:
        id = await feed_agent(run, after="0")
        await sync_to_async(world.relay)()
        ends = [one async for one in bus.history(types="run.completed")]
        assert [one.correlation_id for one in ends] == [str(child.id)]
        await bus.publish(sold(1))
        await auntil(lambda: is_done(bus, id))

    on_the_bus(story)
    first, sale = Signal.objects.filter(run=run).order_by("id").values_list("payload", flat=True)
    assert first == {"first": True} and sale["type"] == "shop.sold"


def test_a_child_is_not_fed_what_its_tree_does() -> None:
    code(spawns)
    register(CodeAgent(counts, key=HAND.key))
    run = drive(make_run())
    signal(run, NAME, {"first": True})
    run_until_idle()
    child = Run.objects.get(parent=run)
    above = Event.create("run.completed", source="ravi", correlation_id=str(run.id), agent=run.agent)
    beside = Event.create("run.completed", source="ravi", agent="test/other", root=str(run.id))

    async def story(bus: Bus) -> None:
        id = await feed_agent(str(child.id))
        for event in (above, beside, sold(1)):
            await bus.publish(event)
        await auntil(lambda: is_done(bus, id))

    on_the_bus(story)
    assert numbers(child) == [1]


async def counts(ctx: Any, inbox: Any) -> None:
    while True:
        await ctx.sleep_until_signal(NAME)


def test_what_a_run_has_no_room_for_waits_until_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    code(counts)
    looked: list[bool] = []
    is_full = world.is_full
    world.patch(monkeypatch, "is_full", lambda *of: looked.append(is_full(*of)) or looked[-1])
    run = drive(make_run())
    signal(run, "other", {})

    async def story(bus: Bus) -> None:
        id = await feed_agent(run)
        for number in range(7):
            await bus.publish(sold(number))
        for told in (2, 4, 6):
            looked.clear()
            # Of two looks the second was all of it behind the last time that the run has read.
            await auntil(lambda: looked.count(True) >= 2 or is_done(bus, id))
            assert len(await sync_to_async(numbers)(run)) == told
            await sync_to_async(drive)(run)
        await auntil(lambda: is_done(bus, id))
        assert [one async for one in bus.history("events.dead")] == []

    on_the_bus(story)
    assert numbers(run) == list(range(7))


def test_nobody_waits_for_a_run_that_has_ended() -> None:
    code(counts)
    run = drive(make_run())
    for key in "ab":
        signal(run, NAME, {"data": {"number": key}}, key=key)
    Run.objects.filter(id=run.id).update(status=Status.CANCELLED)

    async def story(bus: Bus) -> None:
        id = await feed_agent(run)
        await bus.publish(sold(1))
        await auntil(lambda: is_done(bus, id))

    on_the_bus(story)
    assert numbers(run) == ["a", "b"]
