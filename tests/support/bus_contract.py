"""What every event bus has to do: run for the one in memory and for the one over Valkey."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from ravi_django.kernel import Event, SecretRefusedError
from tests.support import world
from tests.support.bus_story import TOPIC, BusStory, Heard, event
from tests.support.runs import auntil
from tests.support.world import Bus


class BusContract(BusStory):
    """`make` is a fixture that gives a new bus."""

    SLOW_S = 0.04  # of a handler: ten take longer than a dead consumer's events are left to it

    async def test_a_subscriber_is_called_in_order_with_what_comes_from_now_on(self, bus: Bus) -> None:
        heard, other = Heard(), Heard()
        await bus.publish(event(0), TOPIC)
        await bus.subscribe(TOPIC, heard)
        await bus.subscribe("other", other)
        sent = [event(number) for number in range(1, 120)]
        for one in sent:
            await bus.publish(one, TOPIC)
        await auntil(lambda: len(heard.events) >= 119)

        assert heard.numbers == list(range(1, 120))
        assert [one.id for one in heard.events] == [one.id for one in sent]
        assert (heard.events[0].ts, heard.events[0].data) == (sent[0].ts, sent[0].data)
        assert other.events == []

    async def test_types_are_patterns(self, bus: Bus) -> None:
        runs, all_of_it = Heard(), Heard()
        await bus.subscribe(TOPIC, runs, types="run.*")
        await bus.subscribe(TOPIC, all_of_it)
        for number, type in enumerate(["run.started", "hitl.requested", "run.completed", "runs.odd"]):
            await bus.publish(event(number, type), TOPIC)
        await auntil(lambda: len(all_of_it.events) == 4)
        await auntil(lambda: len(runs.events) == 2)

        assert runs.numbers == [0, 2]

    async def test_unsubscribing_ends_it(self, bus: Bus) -> None:
        gone, stays = Heard(), Heard()
        id = await bus.subscribe(TOPIC, gone)
        await bus.subscribe(TOPIC, stays)
        await bus.publish(event(1), TOPIC)
        await auntil(lambda: gone.events)
        await bus.unsubscribe(id)
        await bus.unsubscribe(id)
        await bus.unsubscribe("never was")
        await bus.publish(event(2), TOPIC)
        await auntil(lambda: len(stays.events) == 2)

        assert gone.numbers == [1]

    async def test_a_stream_goes_on_behind_a_position(self, bus: Bus) -> None:
        for number in range(6):
            await bus.publish(event(number, "run.started" if number != 4 else "other"), TOPIC)
        first = [one async for one in bus.history(TOPIC)]
        seen = []
        async for one in bus.stream(TOPIC, after=first[2].position, types="run.*"):
            seen.append(one.data["number"])
            if len(seen) == 2:
                await bus.publish(event(6), TOPIC)
            if len(seen) == 3:
                break

        assert [one.data["number"] for one in first] == list(range(6))
        assert seen == [3, 5, 6]
        behind = [one.data["number"] async for one in bus.history(TOPIC, after=first[3].position)]
        assert behind == [4, 5, 6]

    async def test_a_stream_without_a_position_has_what_comes(self, bus: Bus) -> None:
        await bus.publish(event(0), TOPIC)
        found: list[int] = []

        async def read() -> None:
            async for one in bus.stream(TOPIC):
                found.append(one.data["number"])

        reading = asyncio.create_task(read())
        for number in count(1):
            await bus.publish(event(number), TOPIC)
            await asyncio.sleep(0)
            if found:
                break
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

        assert found[0] >= 1

    async def test_a_group_shares_its_events_and_goes_on_where_it_was(self, bus: Bus) -> None:
        one, two, all_of_it = Heard(), Heard(), Heard()
        first = await bus.subscribe(TOPIC, one, group="g")
        second = await bus.subscribe(TOPIC, two, group="g")
        await bus.subscribe(TOPIC, all_of_it, group="other")
        for number in range(20):
            await bus.publish(event(number), TOPIC)
        await auntil(lambda: len(one.events) + len(two.events) == 20)
        await auntil(lambda: len(all_of_it.events) == 20)
        await bus.unsubscribe(first)
        await bus.unsubscribe(second)
        await bus.publish(event(20), TOPIC)  # while nobody is there
        again = Heard()
        await bus.subscribe(TOPIC, again, group="g")
        await auntil(lambda: again.events)

        assert sorted(one.numbers + two.numbers) == list(range(20))
        assert again.numbers == [20]

    async def test_a_new_group_may_begin_with_all_that_is_kept(self, bus: Bus) -> None:
        for number in range(3):
            await bus.publish(event(number), TOPIC)
        all_of_it, new = Heard(), Heard()
        await bus.subscribe(TOPIC, all_of_it, group="all", after="0")
        await bus.subscribe(TOPIC, new, group="new")
        await bus.publish(event(3), TOPIC)
        await auntil(lambda: len(all_of_it.events) == 4 and new.events)

        assert (all_of_it.numbers, new.numbers) == ([0, 1, 2, 3], [3])

    async def test_relaying_is_publishing_from_any_thread(self, bus: Bus) -> None:
        heard = Heard()
        await bus.subscribe(TOPIC, heard)
        await asyncio.to_thread(bus.relay, [(TOPIC, event(number)) for number in range(700)])
        await auntil(lambda: len(heard.events) == 700)

        assert heard.numbers == list(range(700))

    async def test_what_is_published_is_no_password_and_a_topic_has_a_name(self, bus: Bus) -> None:
        with pytest.raises(SecretRefusedError, match=r"data\.api_key"):
            await bus.publish(Event.create("a.b", source="test", api_key="abc"), TOPIC)
        for topic in ("", "x" * 201):
            with pytest.raises(ValueError, match="topic must be a string of 1 to 200 characters"):
                await bus.subscribe(topic, Heard())
        heard = Heard()
        await bus.subscribe(world.BASE_EVENTS, heard)
        await bus.publish(event(1))
        await auntil(lambda: heard.events)  # without a topic it goes to the site's own

    # ---------------------------------------------------------------------------- handlers that fail, hang or are slow

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
    async def test_a_poison_event_goes_to_the_dead_before_the_next(self, bus: Bus, group: str | None) -> None:
        heard = Heard(lambda event: event.data["number"] == 1)
        await bus.subscribe(TOPIC, heard, group=group)
        poison = event(1)
        for one in (event(0), poison, event(2), event(3)):
            await bus.publish(one, TOPIC)
        dead: list[Event] = []
        async for one in bus.stream(TOPIC + world.BASE_DEAD, after="0"):
            dead.append(one)
            break

        await auntil(lambda: 3 in heard.numbers)
        assert heard.numbers == [0, *[1] * world.BASE_TRIES, 2, 3]
        assert (dead[0].type, dead[0].correlation_id) == ("event.undelivered", "run-1")
        assert dead[0].data["event"]["id"] == poison.id
        assert Event.model_validate(dead[0].data["event"]) == poison
        assert (dead[0].data["tries"], dead[0].data["error"]) == (world.BASE_TRIES, "ValueError: no good")

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
        await auntil(lambda: done)

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
