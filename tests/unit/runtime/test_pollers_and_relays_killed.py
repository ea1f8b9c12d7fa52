"""Pollers and relays are killed at any moment: every item is told once, and every event arrives in its order."""

from __future__ import annotations

import os
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
from django.db import connection, transaction

from project.services import Valkey
from ravi_django.kernel import Event
from ravi_django.models import InboxMessage, OutboxEvent, Run, Signal, Source, SourceItem
from tests.support import forks, world
from tests.support.feed_server import FeedServer, rss, serving
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import in_background, on_postgresql, until
from tests.support.world import enqueue

FEEDS, ITEMS, KILLS = 30, 10, 4

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        for feed in range(FEEDS):
            names = [f"{feed}-{number}" for number in reversed(range(ITEMS))]
            server.answers[f"/{feed}"] = (200, {"ETag": f'"{feed}"'}, rss(*names))
        yield server


def process(module: str, *args: str) -> forks.Popen:
    database = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}"))
    return forks.Popen(["-m", f"tests.support.{module}", database, *args], stdout=subprocess.PIPE, text=True)


def ready(started: forks.Popen) -> None:
    assert started.stdout is not None and started.stdout.readline() == "ready\n"


def kill(processes: list[forks.Popen]) -> None:
    for started in processes:
        started.kill()
    for started in processes:
        started.communicate(timeout=seconds(10))


def told() -> list[str]:
    first = [row.body["payload"]["data"]["id"] for row in InboxMessage.objects.all()]
    return sorted(first + [signal.payload["id"] for signal in Signal.objects.all()])


def test_every_item_is_told_once_though_pollers_are_killed(server: FeedServer) -> None:
    chance = random.Random(7)
    Source.objects.bulk_create(
        Source(name=f"feed {n}", agent="test/code", location=server.url(f"/{n}", f"127.0.0.{1 + n}"))
        for n in range(FEEDS)
    )
    pollers = [process("polling_process") for _ in range(2 + KILLS)]
    try:
        for started in pollers:
            ready(started)
        for round_, started in enumerate(pollers[:KILLS]):
            seen = len(server.seen) + chance.randrange(3, 8)
            until(lambda seen=seen: len(server.seen) >= seen or done())
            started.kill()
            for source_id in some(round_):  # each by itself: pollers lock several, in an order of their own
                Source.objects.filter(id=source_id).update(next_at=None, etag="")
        until(done)
    finally:
        kill(pollers)

    assert told() == sorted(f"{feed}-{number}" for feed in range(FEEDS) for number in range(ITEMS))
    assert (SourceItem.objects.count(), Run.objects.count()) == (FEEDS * ITEMS, FEEDS)


def some(round_: int) -> list[object]:
    """Feeds that are to be read again, as if they had just changed."""
    return list(Source.objects.order_by("id").values_list("id", flat=True)[round_::3])


def done() -> bool:
    return not Source.objects.filter(checked_at=None).exists() and SourceItem.objects.count() == FEEDS * ITEMS


KEY = "ravi:bus:events"
RUNS, EACH, KILLS = 20, 30, 3


def write(numbers: range) -> None:
    """An event of each run for each number, a transaction a number."""
    for number in numbers:
        with transaction.atomic():
            for run in range(RUNS):
                enqueue(Event.create("step", source="test", correlation_id=f"run-{run}", number=number))


def read(client: Any) -> list[Event]:
    return [Event.model_validate_json(fields[b"e"]) for _, fields in client.xrange(KEY)]


@pytest.fixture
def bus(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Valkey, Any]]:
    """Its server, and a client of it."""
    world.silence(monkeypatch, "courier_hint")
    with Valkey(tmp_path, fast=True) as server, redis.Redis.from_url(server.url, socket_timeout=5) as client:
        settings.RAVI = {**settings.RAVI, "EVENT_BUS": server.url}
        yield server, client


def test_no_event_is_lost(bus: tuple[Valkey, Any]) -> None:
    server, client = bus
    processes = [process("relaying", server.url) for _ in range(2)]  # one looks on
    step = EACH // KILLS
    try:
        for number in range(KILLS):
            ready(processes[0])
            seen = client.xlen(KEY)
            writing = in_background(write, range(number * step, (number + 1) * step))
            until(lambda seen=seen: client.xlen(KEY) > seen)
            kill(processes)
            writing.result(BOUND_S)
            processes[:] = [process("relaying", server.url) for _ in range(2)]
        ready(processes[0])
        until(lambda: not OutboxEvent.objects.exists())
    finally:
        kill(processes)
    found = read(client)
    by_run: dict[str, list[int]] = defaultdict(list)
    for event in {event.id: event for event in reversed(found)}.values():  # the first time that each came
        by_run[event.correlation_id].insert(0, event.data["number"])
    assert len({event.id for event in found}) == RUNS * EACH
    assert by_run == {f"run-{run}": list(range(EACH)) for run in range(RUNS)}
    assert len(found) > RUNS * EACH, "no kill came between the bus and the commit"
    print(f"{len(found) - RUNS * EACH} of {RUNS * EACH} events came twice over {KILLS} kills")
