"""An event that the bus's server refuses: it holds up no other, comes again, and somebody is told."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection

from project.services import Valkey
from ravi_django.kernel import Event
from ravi_django.management.diagnosis import services
from ravi_django.models import OutboxEvent
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.world import MemoryBus, Relayed

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "ravi:bus:events"


@pytest.fixture(autouse=True)
def _by_hand(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory"}
    world.silence(monkeypatch, "courier_hint")
    world.patch(monkeypatch, "relay_rests_until", 0.0)
    yield


def tell(*numbers: int, topic: str = "events", **data: Any) -> None:
    world.outbox_write([Event.create("shop.sold", source="shop", number=number, **data) for number in numbers], topic)


def numbers(client: Any, key: str = KEY) -> list[int]:
    return [Event.model_validate_json(fields[b"e"]).data["number"] for _, fields in client.xrange(key)]


@pytest.fixture
def client(settings: Any, valkey_url: str) -> Iterator[Any]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": valkey_url}
    with redis.Redis.from_url(valkey_url) as found:
        yield found


def test_a_topic_of_another_type_holds_up_no_other(client: Any) -> None:
    with FakeClock() as clock:
        client.set("ravi:bus:odd", "a string")
        tell(1)
        tell(2, topic="odd")
        tell(3)

        assert world.relay() == 2
        assert numbers(client) == [1, 3]
        (row,) = OutboxEvent.objects.all()
        assert (row.topic, row.tries) == ("odd", 1) and row.error.startswith("WRONGTYPE")
        assert world.is_empty(), "it is not its time"
        tell(4)
        assert world.relay() == 1
        assert OutboxEvent.objects.get().tries == 1

        client.delete("ravi:bus:odd")
        clock.advance(world.AGAIN_S[0] + 1)
        assert world.relay() == 1
        assert numbers(client, "ravi:bus:odd") == [2]
        assert numbers(client) == [1, 3, 4], "what had gone out did not come again"


def test_after_its_tries_somebody_is_told_and_it_comes_again_all_the_same(client: Any) -> None:
    with FakeClock() as clock:
        client.set("ravi:bus:odd", "a string")
        tell(1, topic="odd")
        for tries in range(1, world.OUTBOX_ROWS_TRIES + 1):
            assert world.outbox_rows_refused() == (0, "")
            assert world.outbox_rows_backlog()[0] == 1
            assert world.relay() == 0
            assert OutboxEvent.objects.get().tries == tries
            if tries < world.OUTBOX_ROWS_TRIES:
                clock.advance(world.AGAIN_S[0] * 2 ** (tries - 1) + 1)

        assert world.outbox_rows_backlog() == (0, 0.0)
        count, why = world.outbox_rows_refused()
        assert count == 1 and why.startswith("topic 'odd': WRONGTYPE")
        with pytest.raises(Exception, match=r"1 refused by the server.*WRONGTYPE"):
            world.event_bus()
        (finding,) = [found for found in services() if found.what.startswith("event_bus")]
        assert finding.level == "warning" and "key" in finding.fix
        clock.advance(600)
        assert world.is_empty()
        client.delete("ravi:bus:odd")
        clock.advance(world.AGAIN_S[1])
        assert world.relay() == 1
        assert world.outbox_rows_refused() == (0, "")


def test_a_topic_that_may_not_be_written_is_refused_but_what_is_wrong_with_the_server_is_no_events_fault(
    client: Any, settings: Any, valkey_url: str
) -> None:
    client.acl_setuser("teller", enabled=True, passwords=["+pw"], keys=[KEY], commands=["+@all"])
    client.config_set("maxmemory", "1")
    try:
        tell(1, topic="other")
        tell(2)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            world.relay()
        assert list(OutboxEvent.objects.values_list("tries", flat=True)) == [0, 0]
        client.config_set("maxmemory", "0")
        host = valkey_url.rpartition("@")[2]
        settings.RAVI = {**settings.RAVI, "EVENT_BUS": f"redis://teller:pw@{host}"}

        assert world.relay() == 1
        assert numbers(client) == [2]
        assert OutboxEvent.objects.get().topic == "other"
    finally:
        client.config_set("maxmemory", "0")
        client.acl_deluser("teller")


def test_an_event_that_is_too_large_for_the_server_is_refused(settings: Any, tmp_path: Path) -> None:
    """The server hangs up on it, and on all that is sent with it."""
    with Valkey(tmp_path, fast=True) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("proto-max-bulk-len", str(1024 * 1024))
        settings.RAVI = {**settings.RAVI, "EVENT_BUS": server.url}
        tell(1)
        tell(2, text="x" * (2 * 1024 * 1024))
        tell(3)

        assert world.relay() == 2
        assert set(numbers(client)) == {1, 3}
        assert OutboxEvent.objects.get().tries == 1


def test_what_has_gone_out_is_forgotten_when_the_server_stops_taking(monkeypatch: pytest.MonkeyPatch) -> None:
    tell(1, 2, 3)
    full = redis.exceptions.OutOfMemoryError("full")
    came = Relayed(refused={1: "no"}, left=frozenset({2}), error=full)
    monkeypatch.setattr(MemoryBus, "relay", lambda bus, events: came)

    with pytest.raises(redis.exceptions.OutOfMemoryError):
        world.relay()

    assert [(row.body["data"]["number"], row.tries) for row in OutboxEvent.objects.all()] == [(2, 1), (3, 0)]


def test_a_batch_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[list[int]] = []
    send = MemoryBus.relay

    def measured(bus: MemoryBus, events: Any) -> Relayed:
        sizes.append([event.data["number"] for _, event in events])
        return send(bus, events)

    monkeypatch.setattr(MemoryBus, "relay", measured)
    world.patch(monkeypatch, "RELAY_BATCH_BYTES", 25_000)
    for number in range(5):
        # Bytes count, and not letters; SQLite keeps JSON in ASCII.
        tell(number, text="ä" * 5_000 if connection.vendor == "postgresql" else "x" * 10_000)
    tell(5, text="x" * 40_000)
    tell(6)

    assert world.relay() == 7
    assert sizes == [[0, 1], [2, 3], [4], [5], [6]]


def test_a_fork_leaves_no_lock_held() -> None:
    """The child has what another thread held, and nobody who gives it back."""
    with world.courier_lock, world.relay_one_here, world.background_lock:
        world.courier_wake.set()
        with world.courier_wake._cond:  # type: ignore[attr-defined]
            child = os.fork()
            if child == 0:
                wake = world.courier_wake._cond  # type: ignore[attr-defined]
                locks = (world.courier_lock, world.relay_one_here, world.background_lock, wake)
                free = [lock.acquire(blocking=False) for lock in locks]
                os._exit(0 if all(free) and world.courier_thread is None else 1)
        world.courier_wake.clear()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
