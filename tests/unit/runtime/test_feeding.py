"""Events become the signals of a run: never of what the run does itself, and never more than it reads."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django import register, signal
from ravi_django.kernel import AgentId, Event
from ravi_django.models import Run, Signal, Status
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.bus_story import is_idle
from tests.support.runs import CodeAgent, auntil, code, drive, make_run
from tests.support.world import Bus, feed_agent, get_bus

pytestmark = pytest.mark.django_db(transaction=True)

HAND = AgentId("test", "hand")
NAME = "new_source_item"


@pytest.fixture
async def bus(settings: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory", "SOURCE_UNREAD": 2}
    world.silence(monkeypatch, "courier_hint")
    world.patch(monkeypatch, "BASE_RETRY_S", 0.001)
    world.patch(monkeypatch, "NOT_YET_S", (0.001, 0.01))
    bus = get_bus()
    yield bus
    await bus.close()
    await sync_to_async(connections.close_all)()


async def does(ctx: Any, inbox: Any) -> str:
    return "done"


async def counts(ctx: Any, inbox: Any) -> None:
    while True:
        await ctx.sleep_until_signal(NAME)


async def spawns(ctx: Any, inbox: Any) -> None:
    """A child for each event."""
    while True:
        await ctx.sleep_until_signal(NAME)
        await ctx.join(await ctx.spawn(HAND, "look at it"))


def sold(number: int) -> Event:
    return Event.create("shop.sold", source="shop", number=number)


async def done(bus: Bus) -> None:
    """Wait until the subscription has read all."""
    await auntil(lambda: is_idle(bus))


async def aside(function: Callable[..., Any], *args: Any) -> Any:
    """On the thread of the database, which this loop does not block."""
    return await sync_to_async(function)(*args)


def numbers(run: Run) -> list[int]:
    """Of the events that the run has been told, read or not."""
    found = Signal.objects.filter(run=run, name=NAME).order_by("id").values_list("payload", flat=True)
    return [payload["data"]["number"] for payload in found]


def parent_and_child(hand: Any) -> tuple[Run, Run]:
    code(spawns)
    register(CodeAgent(hand, key=HAND.key))
    run = drive(make_run())
    signal(run, NAME, {"first": True})
    run_until_idle()
    return run, Run.objects.get(parent=run)


async def test_a_run_is_not_fed_what_its_children_do(bus: Bus) -> None:
    """Each would have it begin another."""
    run, child = await aside(parent_and_child, does)
    await feed_agent(run, after="0")
    await aside(world.relay)
    ends = [one async for one in bus.history(types="run.completed")]
    assert [one.correlation_id for one in ends] == [str(child.id)]
    await bus.publish(sold(1))
    await done(bus)
    told = await aside(lambda: list(Signal.objects.filter(run=run).order_by("id").values_list("payload", flat=True)))
    assert told[0] == {"first": True} and [payload["type"] for payload in told[1:]] == ["shop.sold"]


async def test_a_child_is_not_fed_what_its_tree_does(bus: Bus) -> None:
    run, child = await aside(parent_and_child, counts)
    above = Event.create("run.completed", source="ravi", correlation_id=str(run.id), agent=run.agent)
    beside = Event.create("run.completed", source="ravi", agent="test/other", root=str(run.id))
    await feed_agent(str(child.id))
    for event in (above, beside, sold(1)):
        await bus.publish(event)
    await done(bus)
    assert await aside(numbers, child) == [1]


async def test_what_a_run_has_no_room_for_waits_until_it_has_read(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    code(counts)
    looked: list[bool] = []
    is_full = world.is_full
    world.patch(monkeypatch, "is_full", lambda *of: looked.append(is_full(*of)) or looked[-1])
    run = await aside(lambda: drive(make_run()))
    await aside(signal, run, "other", {})
    await feed_agent(run)
    for number in range(7):
        await bus.publish(sold(number))
    for told in (2, 4, 6):
        looked.clear()
        # Of two looks the second was all of it behind the last time that the run has read.
        await auntil(lambda: looked.count(True) >= 2 or is_idle(bus))
        assert len(await aside(numbers, run)) == told
        await aside(drive, run)
    await done(bus)

    assert [one async for one in bus.history("events.dead")] == []
    assert await aside(numbers, run) == list(range(7))


async def test_nobody_waits_for_a_run_that_has_ended(bus: Bus) -> None:
    def ended() -> Run:
        run = drive(make_run())
        for key in "ab":
            signal(run, NAME, {"data": {"number": key}}, key=key)
        Run.objects.filter(id=run.id).update(status=Status.CANCELLED)
        return run

    code(counts)
    run = await aside(ended)
    await feed_agent(run)
    await bus.publish(sold(1))
    await done(bus)

    assert await aside(numbers, run) == ["a", "b"]
