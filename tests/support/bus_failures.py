"""What every event bus has to do when handlers fail, hang or are slow."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django.kernel import Event
from tests.support import world
from tests.support.bus_story import TOPIC, BusStory, Heard, event
from tests.support.runs import auntil
from tests.support.world import Bus


class BusFailures(BusStory):
    SLOW_S = 0.04  # of a handler: ten take longer than a dead consumer's events are left to it

    async def test_what_a_group_was_not_done_with_goes_to_another(self, bus: Bus) -> None:
        begun = asyncio.Event()

        async def hangs(event: Event) -> None:
            begun.set()
            await asyncio.Event().wait()

        id = await bus.subscribe(TOPIC, hangs, group="g")
        await bus.publish(event(1), TOPIC)
        await begun.wait()
        await bus.unsubscribe(id)
        heard = Heard()
        await bus.subscribe(TOPIC, heard, group="g")
        await auntil(lambda: heard.events)

        assert heard.numbers == [1]

    async def test_a_slow_handler_has_each_event_once_while_nobody_dies(self, bus: Bus) -> None:
        """What one has read takes longer than a dead consumer's events are left to it."""
        heard = Heard()

        async def slow(event: Event) -> None:
            await asyncio.sleep(self.SLOW_S)
            await heard(event)

        for number in range(120):
            await bus.publish(event(number), TOPIC)
        for _ in range(8):
            await bus.subscribe(TOPIC, slow, group="g", after="0")
        await auntil(lambda: {*heard.numbers} == {*range(120)})
        end = Heard()
        await bus.subscribe(TOPIC, end, group="end")
        await bus.publish(event(120), TOPIC)
        await auntil(lambda: 120 in heard.numbers and end.events)

        assert sorted(heard.numbers) == list(range(121))
        assert [one async for one in bus.history(TOPIC + world.BASE_DEAD)] == []

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_a_handler_that_fails_once_is_called_again(self, bus: Bus, group: str | None) -> None:
        heard = Heard(lambda event: len(heard.events) == 1)
        await bus.subscribe(TOPIC, heard, group=group)
        await bus.publish(event(1), TOPIC)
        await auntil(lambda: len(heard.events) == 2)
        await bus.publish(event(2), TOPIC)
        await auntil(lambda: len(heard.events) == 3)

        assert heard.numbers == [1, 1, 2]
        assert [one async for one in bus.history(TOPIC + world.BASE_DEAD)] == []

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_a_poison_event_goes_to_the_dead_and_holds_up_no_other(self, bus: Bus, group: str | None) -> None:
        heard = Heard(lambda event: event.data["number"] == 1)
        await bus.subscribe(TOPIC, heard, group=group)
        poison = event(1)
        for one in (event(0), poison, event(2), event(3)):
            await bus.publish(one, TOPIC)
        dead: list[Event] = []
        async for one in bus.stream(TOPIC + world.BASE_DEAD, after="0"):
            dead.append(one)
            break

        assert heard.numbers.count(1) == world.BASE_TRIES
        assert sorted({*heard.numbers}) == [0, 1, 2, 3]
        assert (dead[0].type, dead[0].correlation_id) == ("event.undelivered", "run-1")
        assert dead[0].data["event"]["id"] == poison.id
        assert Event.model_validate(dead[0].data["event"]) == poison
        assert (dead[0].data["tries"], dead[0].data["error"]) == (world.BASE_TRIES, "ValueError: no good")

    async def test_what_is_behind_a_poison_event_does_not_wait_for_its_tries(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.patch(monkeypatch, "BASE_RETRY_S", 1000.0)

        heard = Heard(lambda event: event.data["number"] == 1)
        await bus.subscribe(TOPIC, heard, group="g")
        await bus.publish(event(1), TOPIC)
        await bus.publish(event(2), TOPIC)
        await auntil(lambda: 2 in heard.numbers)

        assert heard.numbers == [1, 2]

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_an_event_that_a_handler_has_no_room_for_waits_and_is_no_failure(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch, group: str | None
    ) -> None:
        world.patch(monkeypatch, "NOT_YET_S", (0.001, 0.002))

        heard, calls = Heard(), Heard()

        async def has_no_room(event: Event) -> None:
            await calls(event)
            if len(calls.events) < 3 * world.BASE_TRIES:
                raise world.NotYet("full")
            await heard(event)

        await bus.subscribe(TOPIC, has_no_room, group=group)
        for number in (1, 2):
            await bus.publish(event(number), TOPIC)
        await auntil(lambda: len(heard.events) == 2)

        assert calls.numbers == [1] * 3 * world.BASE_TRIES + [2]
        assert heard.numbers == [1, 2]
        assert [one async for one in bus.history(TOPIC + world.BASE_DEAD)] == []

    async def test_while_an_event_waits_for_room_nobody_is_busy(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And it goes to another once the subscription has ended."""
        world.patch(monkeypatch, "NOT_YET_S", (1000.0, 1000.0))

        calls, heard, beside = Heard(), Heard(), Heard()

        async def has_no_room(event: Event) -> None:
            await calls(event)
            raise world.NotYet("full")

        id = await bus.subscribe(TOPIC, has_no_room, group="g")
        await bus.subscribe(TOPIC, beside)
        await bus.publish(event(1), TOPIC)
        await auntil(lambda: calls.events)
        await bus.publish(event(2), TOPIC)
        await auntil(lambda: len(beside.events) == 2)
        assert calls.numbers == [1]
        await bus.unsubscribe(id)
        await bus.subscribe(TOPIC, heard, group="g")
        await auntil(lambda: sorted(heard.numbers) == [1, 2])

    async def test_a_handler_that_hangs_has_failed(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        world.patch(monkeypatch, "HANDLER_S", 0.01)

        async def hangs(event: Event) -> None:
            if event.data["number"] == 1:
                await asyncio.Event().wait()
            done.append(event.data["number"])

        done: list[int] = []
        await bus.subscribe(TOPIC, hangs)
        await bus.publish(event(1), TOPIC)
        await bus.publish(event(2), TOPIC)
        async for one in bus.stream(TOPIC + world.BASE_DEAD, after="0"):
            assert one.data["error"].startswith("TimeoutError")
            break

        assert done == [2]

    async def test_a_handler_whose_own_work_was_cancelled_has_failed(self, bus: Bus) -> None:
        async def cancelled(event: Event) -> None:
            calls.append(event.data["number"])
            if len(calls) == 1:
                raise asyncio.CancelledError

        calls: list[int] = []
        await bus.subscribe(TOPIC, cancelled)
        await bus.publish(event(1), TOPIC)
        await auntil(lambda: len(calls) == 2)
        await bus.publish(event(2), TOPIC)
        await auntil(lambda: len(calls) == 3)
