"""The event bus in memory and over Valkey."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from project.services import Valkey
from ravi_django import kernel
from ravi_django.kernel import Event, EventPublisher, EventSubscriber, event_types
from ravi_django.kernel.event_types import SCHEMA_VERSIONS, workflow_started
from tests.support import world
from tests.support.bus_contract import BusContract
from tests.support.bus_story import TOPIC, Heard, event
from tests.support.runs import auntil
from tests.support.world import Bus, MemoryBus, ValkeyBus, get_bus


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

    async def test_a_stream_that_is_too_slow_loses_the_oldest(
        self, bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.patch(monkeypatch, "MEMORY_KEPT", 10)
        reading = bus.stream(TOPIC)
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        bus.relay([(TOPIC, event(number)) for number in range(30)])
        found = [(await first).data["number"]]
        while len(found) < 10:
            found.append((await anext(reading)).data["number"])
        assert found == list(range(20, 30))
        assert "too slow for topic test: 20 events are dropped" in caplog.text


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
    assert {"Event", "EventPublisher", "EventSubscriber"} <= {*dir(kernel)}


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


KEY = f"ravi:bus:{TOPIC}"


class TestValkey(BusContract):
    CLAIM_S = 1.0  # a loop on a busy machine stands still for a while: who lives must not be taken for dead
    SLOW_S = 0.15

    @pytest.fixture
    def make(self, valkey_url: str) -> Callable[[], Bus]:
        return lambda: ValkeyBus(valkey_url, claim_s=self.CLAIM_S)

    @pytest.fixture
    def client(self, valkey_url: str) -> Iterator[Any]:
        with redis.Redis.from_url(valkey_url) as client:
            yield client

    @staticmethod
    def left_behind(client: Any, many: int, **fields: Any) -> None:
        """A consumer has read so many events and is gone."""
        client.xgroup_create(KEY, "g", id="0", mkstream=True)
        places = [client.xadd(KEY, {"e": event(number).model_dump_json()}) for number in range(many)]
        client.xreadgroup("g", "gone", {KEY: ">"})
        client.xclaim(KEY, "g", "gone", 0, places, idle=60_000, justid=True, **fields)

    @staticmethod
    def tries(client: Any) -> list[int]:
        return [row["times_delivered"] for row in client.xpending_range(KEY, "g", "-", "+", 10)]

    @pytest.mark.parametrize("how", ["relay", "publish"])
    async def test_a_topic_is_trimmed(self, bus: Bus, settings: Any, client: Any, how: str) -> None:
        settings.RAVI = {**settings.RAVI, "EVENT_MAXLEN": 100}
        events = [event(number) for number in range(1000)]
        if how == "relay":
            bus.relay([(TOPIC, one) for one in events])
        else:
            for one in events:
                await bus.publish(one, TOPIC)
        assert 100 <= client.xlen(KEY) < 300

    async def test_what_is_no_event_is_passed_over(self, bus: Bus, client: Any) -> None:
        alone, grouped = Heard(), Heard()
        await bus.subscribe(TOPIC, alone)
        await bus.subscribe(TOPIC, grouped, group="g")
        client.xadd(KEY, {"e": "{"})
        client.xadd(KEY, {"other": "x"})
        await bus.publish(event(1), TOPIC)
        await auntil(lambda: alone.events and grouped.events)
        assert (alone.numbers, grouped.numbers) == ([1], [1])
        assert [one.data["number"] async for one in bus.history(TOPIC)] == [1]
        await auntil(lambda: client.xpending(KEY, "g")["pending"] == 0)
        await bus.close()

    async def test_an_event_is_acknowledged_once_its_handler_has_returned(self, bus: Bus, client: Any) -> None:
        may_end, begun = asyncio.Event(), asyncio.Event()

        async def slow(event: Event) -> None:
            begun.set()
            await may_end.wait()

        await bus.subscribe(TOPIC, slow, group="g")
        await bus.publish(event(1), TOPIC)
        await begun.wait()
        assert client.xpending(KEY, "g")["pending"] == 1
        may_end.set()
        await auntil(lambda: client.xpending(KEY, "g")["pending"] == 0)

    async def test_what_takes_its_consumers_down_goes_to_the_dead(self, bus: Bus, client: Any) -> None:
        """Each of five consumers was given the event and has died over it."""
        poison = event(1)
        client.xgroup_create(KEY, "g", id="0", mkstream=True)
        place = client.xadd(KEY, {"e": poison.model_dump_json()})
        client.xreadgroup("g", "c0", {KEY: ">"})
        for number in range(1, world.BASE_TRIES):
            client.xclaim(KEY, "g", f"c{number}", 0, [place])
        client.xclaim(KEY, "g", "last", 0, [place], idle=60_000, justid=True)

        heard = Heard()
        await bus.subscribe(TOPIC, heard, group="g")
        async for dead in bus.stream(TOPIC + world.BASE_DEAD, after="0"):
            assert dead.data["event"]["id"] == poison.id
            assert dead.data["tries"] == world.BASE_TRIES
            break
        assert heard.events == []

    async def test_what_waited_behind_a_killer_is_not_buried_with_it(self, bus: Bus, client: Any) -> None:
        """A process that dies over the first of what it read takes the others' turn, and not their tries."""
        self.left_behind(client, 4)
        begun = asyncio.Event()

        async def dies(event: Event) -> None:
            begun.set()
            await asyncio.Event().wait()

        await bus.subscribe(TOPIC, dies, group="g")
        await begun.wait()
        assert self.tries(client) == [2, 1, 1, 1]

    async def test_waiting_for_room_is_no_reason_to_be_buried(
        self, bus: Bus, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often its consumers are restarted meanwhile."""
        world.patch(monkeypatch, "NOT_YET_S", (1000.0, 1000.0))
        self.left_behind(client, 2, retrycount=world.BASE_TRIES - 1)

        async def has_no_room(event: Event) -> None:
            raise world.NotYet("full")

        await bus.subscribe(TOPIC, has_no_room, group="g")
        await auntil(lambda: self.tries(client) == [1, world.BASE_TRIES - 1])

    async def test_who_has_lost_an_event_to_another_does_not_begin_with_it(self, bus: Bus, client: Any) -> None:
        heard, begun, may_go_on = Heard(), asyncio.Event(), asyncio.Event()

        async def slow(event: Event) -> None:
            begun.set()
            await may_go_on.wait()
            await heard(event)

        for number in range(3):
            await bus.publish(event(number), TOPIC)
        await bus.subscribe(TOPIC, slow, group="g", after="0")
        await begun.wait()
        second = client.xpending_range(KEY, "g", "-", "+", 10)[1]
        client.xclaim(KEY, "g", "other", 0, [second["message_id"]])
        ages = [0]

        def was_renewed() -> bool:
            ages.append(client.xpending_range(KEY, "g", "-", "+", 1)[0]["time_since_delivered"])
            return ages[-1] < ages[-2]

        await auntil(was_renewed)
        may_go_on.set()
        await auntil(lambda: len(heard.events) == 2)
        await bus.publish(event(3), TOPIC)
        await auntil(lambda: 3 in heard.numbers)
        assert heard.numbers == [0, 2, 3]
        await auntil(lambda: client.xpending(KEY, "g")["pending"] == 1)

    async def test_a_consumer_that_was_not_seen_for_long_is_struck_off(
        self, bus: Bus, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.patch(monkeypatch, "FORGET_S", -1.0)
        client.xgroup_create(KEY, "g", mkstream=True)
        client.xgroup_createconsumer(KEY, "g", "idle")
        client.xadd(KEY, {"e": event(1).model_dump_json()})
        client.xreadgroup("g", "holds one", {KEY: ">"})
        await bus.subscribe(TOPIC, Heard(lambda event: True), group="g")
        await bus.close()
        names = {consumer["name"] for consumer in client.xinfo_consumers(KEY, "g")}
        assert b"idle" not in names
        assert b"holds one" in names

    async def test_publishing_outlives_connections_that_the_server_has_closed(self, bus: Bus, client: Any) -> None:
        """A pooled connection does not know of it before it is used."""
        await bus.publish(event(1), TOPIC)
        client.client_kill_filter(_type="normal", skipme=True)
        await bus.publish(event(2), TOPIC)
        assert [one.data["number"] async for one in bus.history(TOPIC)] == [1, 2]

    async def test_subscribers_outlive_a_restart_of_the_server(self, tmp_path: Path) -> None:
        alone, grouped, streamed = Heard(), Heard(), Heard()

        async def read() -> None:
            async for one in bus.stream(TOPIC, after="0"):
                await streamed(one)

        with Valkey(tmp_path, fast=True) as server:
            bus = ValkeyBus(server.url)
            await bus.subscribe(TOPIC, alone)
            await bus.subscribe(TOPIC, grouped, group="g")
            reading = asyncio.create_task(read())
            await bus.publish(event(1), TOPIC)
            await auntil(lambda: alone.events and grouped.events and streamed.events)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await bus.publish(event(2), TOPIC)
            await auntil(lambda: all(2 in heard.numbers for heard in (alone, grouped, streamed)))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await bus.close()
