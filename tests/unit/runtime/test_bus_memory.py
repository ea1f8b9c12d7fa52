"""The event bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ravi_django.kernel import Event
from tests.support import world
from tests.support.bus_contract import BusContract
from tests.support.bus_story import TOPIC, Heard, event
from tests.support.runs import auntil
from tests.support.world import Bus, MemoryBus


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

        async def story(_: Bus) -> None:
            heard, grouped = Heard(), Heard()
            await bus.subscribe(TOPIC, heard)
            await bus.subscribe(TOPIC, grouped, group="g")
            await bus.publish(event(1), TOPIC)
            await bus.publish(event(2), TOPIC)
            await auntil(lambda: len(heard.events) == len(grouped.events) == 2)

        self.run(lambda: bus, story)

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

        async def story(_: Bus) -> None:
            id = await bus.subscribe(TOPIC, Heard())
            sent = [(TOPIC, event(number)) for number in range(12)]
            assert len(bus.relay(sent).left) == 2
            await bus.unsubscribe(id)
            assert hints == [1]
            assert not bus.relay(sent).left

        self.run(lambda: bus, story)
        asyncio.run(bus.subscribe(TOPIC, Heard()))
        assert not bus.relay([(TOPIC, event(number)) for number in range(12)]).left, "its loop has ended"

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
