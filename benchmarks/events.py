"""The event bus: what it costs a run, how many events a second go through, and how soon a program hears of a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections, transaction

from benchmarks import steps
from benchmarks.in_flight import ready_worker
from benchmarks.raw_commit import RawCommit
from benchmarks.report import Figure
from benchmarks.stack import Stack
from ravi_django.engine.journal import outbox
from ravi_django.events import enqueue, get_bus
from ravi_django.kernel import Event
from ravi_django.models import OutboxEvent
from ravi_django.wings.events import relay
from ravi_django.wings.events.relay import forget_buses

TOPIC = "bench"
BATCH = 500  # events of a transaction
TIMEOUT_S = 60.0


@contextmanager
def bus_at(address: str | None) -> Iterator[None]:
    given = settings.RAVI
    settings.RAVI = {**given, "EVENT_BUS": address}
    try:
        yield
    finally:
        settings.RAVI = given
        forget_buses()


def measure(stack: Stack, *, turns: int, runs: int, events: int, samples: int) -> Iterator[Figure]:
    with bus_at(stack.redis_url):
        yield from _throughput(events)
        with ready_worker(stack, ["react/bench-scripted"], BENCH_EVENT_BUS=stack.redis_url, BENCH_SCRIPTED_ALONE="1"):
            yield from asyncio.run(_latencies(samples))
    yield from _step(stack, turns, runs)


def _event(number: int) -> Event:
    return Event.create("bench.happened", source="bench", correlation_id=str(number), number=number)


def _throughput(events: int) -> list[Figure]:
    """Written in transactions of many, then relayed by this process."""
    begun = time.perf_counter()
    for start in range(0, events, BATCH):
        with transaction.atomic():
            outbox.write([_event(number) for number in range(start, min(start + BATCH, events))], TOPIC)
    written = time.perf_counter()
    while not relay.is_empty():  # the courier's hints may find a worker
        relay.relay()
    sent = time.perf_counter()
    return [
        Figure("events_written", None, events / (written - begun), "/s"),
        Figure("events_relayed", None, events / (sent - written), "/s"),
    ]


async def _latencies(samples: int) -> list[Figure]:
    """One event after another: from its commit to the handler, by the hint to a worker and its relay."""
    bus, heard, took = get_bus(), asyncio.Event(), []

    async def handler(event: Event) -> None:
        heard.set()

    await bus.subscribe(TOPIC, handler)
    for number in range(samples + 5):
        heard.clear()
        await sync_to_async(enqueue)(_event(number), TOPIC)
        committed = time.perf_counter()
        async with asyncio.timeout(TIMEOUT_S):
            await heard.wait()
        if number >= 5:  # the worker has its connections
            took.append((time.perf_counter() - committed) * 1000)
        await asyncio.sleep(0.03)  # else the next would wait for the courier
    await bus.close()
    await sync_to_async(connections.close_all)()
    return [
        Figure("event_latency_p50", None, median(took), "ms"),
        Figure("event_latency_p95", None, quantiles(took, n=20)[-1], "ms"),
    ]


def _step(stack: Stack, turns: int, runs: int) -> list[Figure]:
    """The durable step, in turns without and with a bus."""
    off: list[float] = []
    on: list[float] = []
    rounds = 3
    with RawCommit(stack.database_url) as raw:
        for _ in range(rounds):
            for address, into in ((None, off), (stack.redis_url, on)):
                with bus_at(address):
                    (found,) = asyncio.run(steps.sample({turns: max(1, runs // rounds)}, raw))
                into += found.wall
    OutboxEvent.objects.all().delete()
    connection.close()
    return [
        Figure("step_without_bus", turns, median(off), "ms"),
        Figure("step_with_bus", turns, median(on), "ms"),
    ]
