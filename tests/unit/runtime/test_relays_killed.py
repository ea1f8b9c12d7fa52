"""Relays are killed at any moment: every event arrives, in its order."""

import os
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
from ravi_django.models import OutboxEvent
from tests.support import forks, world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import in_background, on_postgresql, until
from tests.support.world import enqueue

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql, pytest.mark.full]


def relay(bus: str) -> forks.Popen:
    database = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}"))
    return forks.Popen(["-m", "tests.support.relaying", database, bus], stdout=subprocess.PIPE, text=True)


def ready(started: forks.Popen) -> None:
    assert started.stdout is not None and started.stdout.readline() == "ready\n"


def kill(processes: list[forks.Popen]) -> None:
    for started in processes:
        started.kill()
    for started in processes:
        started.communicate(timeout=seconds(10))


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
    processes = [relay(server.url) for _ in range(2)]  # one looks on
    step = EACH // KILLS
    try:
        for number in range(KILLS):
            ready(processes[0])
            seen = client.xlen(KEY)
            writing = in_background(write, range(number * step, (number + 1) * step))
            until(lambda seen=seen: client.xlen(KEY) > seen)
            kill(processes)
            writing.result(BOUND_S)
            processes[:] = [relay(server.url) for _ in range(2)]
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
