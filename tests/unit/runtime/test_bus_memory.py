"""The event bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured

from ravi_django import kernel
from ravi_django.kernel import Event, EventPublisher, EventSubscriber, event_types
from ravi_django.kernel.event_types import SCHEMA_VERSIONS, workflow_started
from tests.support import world
from tests.support.bus_contract import BusContract
from tests.support.bus_story import TOPIC, Heard, event
from tests.support.runs import auntil
from tests.support.world import Bus, MemoryBus, ValkeyBus, forget_buses, get_bus


class TestMemory(BusContract):
    @pytest.fixture
    def make(self) -> Callable[[], Bus]:
        return MemoryBus

    async def test_it_keeps_no_more_than_it_may(self, bus: Bus, settings: Any) -> None:
        settings.RAVI = {**settings.RAVI, "EVENT_MAXLEN": 5}
        for number in range(9):
            await bus.publish(event(number), TOPIC)

        assert [one.data["number"] async for one in bus.history(TOPIC)] == [4, 5, 6, 7, 8]

    def test_a_loop_that_has_ended_holds_up_nobody(self) -> None:
        bus = MemoryBus()
        asyncio.run(bus.subscribe(TOPIC, Heard()))
        asyncio.run(bus.subscribe(TOPIC, Heard(), group="g"))

        async def story() -> None:
            heard, grouped = Heard(), Heard()
            await bus.subscribe(TOPIC, heard)
            await bus.subscribe(TOPIC, grouped, group="g")
            await bus.publish(event(1), TOPIC)
            await bus.publish(event(2), TOPIC)
            await auntil(lambda: len(heard.events) == len(grouped.events) == 2)
            await bus.close()

        asyncio.run(story())

    async def test_a_subscription_without_room_keeps_the_outbox_back(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever is too slow loses nothing of the outbox, and there is a hint once there is room."""
        world.patch(monkeypatch, "MEMORY_KEPT", 10)
        hints: list[int] = []
        world.patch(monkeypatch, "courier_hint", lambda: hints.append(1))

        may_go_on, heard = asyncio.Event(), Heard()

        async def slow(event: Event) -> None:
            await may_go_on.wait()
            await heard(event)

        await bus.subscribe(TOPIC, slow, group="g")
        sent = [(TOPIC if number != 24 else "other", event(number)) for number in range(25)]
        came = bus.relay(sent)
        assert (came.left, came.refused, came.error) == (frozenset(range(10, 24)), {}, None)
        assert bus.relay(sent[10:12]).left == {0, 1}
        assert hints == []
        may_go_on.set()
        await auntil(lambda: len(heard.events) == 10)
        assert hints == [1]
        assert not bus.relay(sent[10:15]).left
        await auntil(lambda: len(heard.events) == 15)
        assert heard.numbers == list(range(15))
        assert hints == [1]

    def test_who_leaves_keeps_nothing_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world.patch(monkeypatch, "MEMORY_KEPT", 10)
        hints: list[int] = []
        world.patch(monkeypatch, "courier_hint", lambda: hints.append(1))
        bus = MemoryBus()
        sent = [(TOPIC, event(number)) for number in range(12)]

        async def story() -> None:
            id = await bus.subscribe(TOPIC, Heard())
            assert len(bus.relay(sent).left) == 2
            await bus.unsubscribe(id)
            assert hints == [1]
            assert not bus.relay(sent).left
            await bus.close()

        asyncio.run(story())
        asyncio.run(bus.subscribe(TOPIC, Heard()))
        assert not bus.relay(sent).left, "its loop has ended"

    async def test_a_stream_that_is_too_slow_loses_the_oldest(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.patch(monkeypatch, "MEMORY_KEPT", 10)
        reading = bus.stream(TOPIC)
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        assert not bus.relay([(TOPIC, event(number)) for number in range(30)]).left
        found = [(await first).data["number"]]
        while len(found) < 10:
            found.append((await anext(reading)).data["number"])

        assert found == list(range(20, 30))
        assert caplog.text.count("too slow for topic test: events are dropped") == 2


@pytest.fixture(autouse=True)
def _no_buses() -> Iterator[None]:
    yield
    forget_buses()


@pytest.mark.sqlite
def test_auto_is_this_process_where_there_is_no_redis(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "auto", "STREAM_URL": None, "ENGINE": "inline"}
    settings.CHANNEL_LAYERS = {}
    publishes: EventPublisher = get_bus()
    reads: EventSubscriber = get_bus()

    assert isinstance(publishes, MemoryBus) and publishes is reads and isinstance(reads, Bus)


def test_the_setting_says_which_bus(settings: Any, valkey_url: str) -> None:
    site = dict(settings.RAVI)
    settings.RAVI = {**site, "EVENT_BUS": None}
    with pytest.raises(ImproperlyConfigured, match="RAVI\\['EVENT_BUS'\\]"):
        get_bus()
    for given, kind in (("memory", MemoryBus), ("auto", ValkeyBus), (valkey_url, ValkeyBus)):
        settings.RAVI = {**site, "EVENT_BUS": given, "STREAM_URL": valkey_url}
        assert isinstance(get_bus(), kind) and get_bus() is get_bus(), given


def test_every_type_has_its_factory() -> None:
    for type in SCHEMA_VERSIONS:
        assert callable(getattr(event_types, type.replace(".", "_"))), type
    assert {"Event", "EventPublisher", "EventSubscriber"} <= {*kernel.__all__}


def test_a_factory_takes_ids_as_they_come() -> None:
    run, thread = uuid4(), uuid4()

    by_uuid = workflow_started(run_id=run, thread_id=thread, user_content="hi")
    by_text = workflow_started(run_id=str(run), thread_id=str(thread), user_content="hi")

    assert by_uuid.type == "workflow.started" and by_uuid.schema_version == 1
    assert by_uuid.correlation_id == by_text.correlation_id == str(run)
    assert by_uuid.data == by_text.data
    assert (by_uuid.data["run"], by_uuid.data["thread"]) == (str(run), str(thread))
    assert by_uuid.data["user_content"] == "hi"
    assert Event.model_validate_json(by_uuid.model_dump_json()) == by_uuid
