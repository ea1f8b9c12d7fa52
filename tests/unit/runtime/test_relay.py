"""From the outbox to the bus: in order, at least once, and nothing else fails when the bus is away."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from project.services import Valkey
from ravi_django import submit
from ravi_django.kernel import Event
from ravi_django.models import OutboxEvent, Run, Signal
from ravi_django.tasks import OF_WINGS
from tests.support import world
from tests.support.bus_story import Heard, is_idle
from tests.support.outboxes import answers
from tests.support.runs import BOUND_S, auntil, code, drive, in_background, make_run, on_postgresql
from tests.support.world import MemoryBus, enqueue, feed_agent, get_bus

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory"}
    world.patch(monkeypatch, "relay_rests_until", 0.0)
    world.patch(monkeypatch, "IDLE_S", 0.05)
    yield
    world.courier_join()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nobody relays but the test; the list grows with each hint."""
    hints: list[int] = []
    world.patch(monkeypatch, "courier_hint", lambda: hints.append(1))
    return hints


def event(number: int) -> Event:
    return Event.create("shop.sold", source="shop", number=number)


def kept(topic: str = "events") -> list[Event]:
    async def read() -> list[Event]:
        bus = get_bus()
        try:
            return [one async for one in bus.history(topic)]
        finally:
            await bus.close()

    return asyncio.run(read())


def numbers() -> list[int]:
    return [one.data["number"] for one in kept()]


@pytest.mark.sqlite
def test_all_of_the_outbox_goes_out_in_its_order(by_hand: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "RELAY_BATCH", 7)
    for number in range(30):
        enqueue(event(number))
    enqueue(event(30), "other")
    rows = {row.body["id"]: row.created_at for row in OutboxEvent.objects.all()}
    for odd in ({"nothing": "here"}, ["no event"]):
        OutboxEvent.objects.create(topic="events", body=odd)
    enqueue(event(31))

    world.relay()

    assert numbers() == [*range(30), 31], "a row that nobody can read holds up no other"
    assert [one.data["number"] for one in kept("other")] == [30]
    assert {one.id: one.ts for one in kept() if one.id in rows}.items() <= rows.items()
    assert OutboxEvent.objects.count() == 0
    assert world.relay() == 0


def test_what_a_relay_died_over_comes_again_with_its_id(by_hand: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        enqueue(event(number))

    def dies(rows: Sequence[OutboxEvent]) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        world.patch(patched, "outbox_rows_forget", dies)
        with pytest.raises(RuntimeError):
            world.relay()
    assert world.relay() == 3

    assert numbers() == [0, 1, 2, 0, 1, 2]
    assert len({one.id for one in kept()}) == 3


@on_postgresql
def test_one_relay_at_a_time_and_it_finds_what_the_others_came_for(
    by_hand: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes for a row that the first does not see any more in its batch: the first looks once more."""
    enqueue(event(0))
    second: list[int] = []
    read = world.outbox_rows_waiting

    def meanwhile(limit: int, most: int) -> list[OutboxEvent]:
        found = read(limit, most)
        if not found and not second:  # the first is about to end
            in_background(enqueue, event(1)).result(BOUND_S)
            second.append(in_background(world.relay).result(BOUND_S))
        return found

    with monkeypatch.context() as patched:
        world.patch(patched, "outbox_rows_waiting", meanwhile)
        world.patch(patched, "RELAY_BATCH", 1)
        assert world.relay() == 2
    assert second == [0]
    assert numbers() == [0, 1]
    with transaction.atomic():
        assert world.outbox_rows_alone()
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("30s",), "one that stands still is thrown out"


def test_without_the_server_the_outbox_waits_and_nothing_else_fails(
    by_hand: list[int], settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Valkey(tmp_path, fast=True) as server:
        settings.RAVI = {**settings.RAVI, "EVENT_BUS": server.url}
        server.stop()
        code(answers)
        run = drive(make_run())
        assert run.status == "completed"
        OF_WINGS["ravi.relay_events"].run()
        assert OutboxEvent.objects.count() == 3
        count, age = world.outbox_rows_backlog()
        assert count == 3 and 0 < age < BOUND_S

        server.start()
        OF_WINGS["ravi.relay_events"].run()
        assert OutboxEvent.objects.count() == 3, "it rests after a failure"
        world.patch(monkeypatch, "relay_rests_until", 0.0)
        OF_WINGS["ravi.relay_events"].run()

        assert world.outbox_rows_backlog() == (0, 0.0)
        assert [one.type for one in kept()] == ["workflow.started", "run.started", "run.completed"]


def test_a_submit_is_told_after_its_commit_and_the_sweep_finds_what_no_hint_has_reached(by_hand: list[int]) -> None:
    code(answers)
    with transaction.atomic():
        submit("test/code", "hi")
        assert by_hand == []
    assert (by_hand, Run.objects.count()) == ([1], 1)
    by_hand.clear()

    for _ in range(2):
        world.sweeper_sweep(lambda run_ids: None)
        assert by_hand == [1]
        world.relay()


def test_a_thousand_events_are_a_few_messages_to_the_broker(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "redis://127.0.0.1:1/0", "ENGINE": "celery"}
    world.patch(monkeypatch, "background_hint", lambda task, *args: sent.append(task))

    rests, goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def rest(seconds: float) -> None:
        rests.release()
        assert goes_on.acquire(timeout=BOUND_S)

    world.courier_join()
    world.patch(monkeypatch, "courier_time", SimpleNamespace(sleep=rest))
    world.courier_hint()
    for hints in (1000, 1000, 0):
        assert rests.acquire(timeout=BOUND_S)
        for _ in range(hints):
            world.courier_hint()
        goes_on.release()
    world.courier_join()

    assert sent == [OF_WINGS["ravi.relay_events"].name] * 3


def test_a_hint_that_comes_as_the_courier_goes_home_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the courier has just waited in vain: whoever hints, and finds a courier, relies on it."""

    class Late(threading.Event):
        in_vain = 1

        def wait(self, timeout: float | None = None) -> bool:
            self.in_vain -= 1
            return super().wait(timeout) and self.in_vain < 0

    sent = threading.Event()
    world.patch(monkeypatch, "courier_send", sent.set)
    world.patch(monkeypatch, "courier_wake", Late())

    world.courier_hint()

    assert sent.wait(BOUND_S)


async def test_in_one_process_a_handler_hears_of_a_run(settings: Any) -> None:
    code(answers)
    heard = Heard()
    bus = get_bus()
    assert isinstance(bus, MemoryBus)
    await bus.subscribe("events", heard, types="run.*")
    try:
        await asyncio.to_thread(lambda: in_background(lambda: drive(make_run())).result(BOUND_S))
        await auntil(lambda: len(heard.events) == 2)
    finally:
        await bus.close()

    assert [one.type for one in heard.events] == ["run.started", "run.completed"]


async def test_a_run_is_fed_each_event_once(by_hand: list[int]) -> None:
    async def listens(ctx: Any, inbox: Any) -> str:
        return str(await ctx.sleep_until_signal("new_source_item"))

    aside = sync_to_async
    code(listens)
    run = await aside(lambda: drive(make_run()))()
    other = await aside(make_run)()
    own = Event.create("run.started", source="ravi", correlation_id=str(run.id))
    same = Event.create("run.started", source="ravi", correlation_id=str(other.id), agent="test/code")
    told, sold = Event.create("run.completed", source="ravi", cost=1), Event.create("shop.sold", source="shop")
    bus = get_bus()
    await feed_agent(run, types="run.*")
    for one in (own, same, told, sold, told):
        await bus.publish(one)
    ends = Heard()
    await bus.subscribe("events", ends, group=f"agent:{run.id}x", after="0")
    await auntil(lambda: len(ends.events) == 5 and is_idle(bus))

    (signal,) = await aside(lambda: list(Signal.objects.filter(run=run)))()
    assert (signal.name, signal.payload["id"], signal.payload["data"]) == ("new_source_item", told.id, {"cost": 1})
    assert "run.completed" in ((await aside(drive)(run)).output or "")
    await feed_agent(run, after="0", group="late")  # behind its end
    await auntil(lambda: is_idle(bus))
    assert [one async for one in bus.history("events.dead")] == []
    await bus.close()
    await aside(connections.close_all)()
