"""Feeds polled by one process: fetched, read, told to their agents; then all again, unchanged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connections

from benchmarks.report import Figure
from benchmarks.stack import Stack, require, running
from ravi_django.models import Source, SourceItem
from ravi_django.wings.feeds.sources import poll

HOSTS = 50
AGENT = "react/bench-instant"


def measure(stack: Stack, feeds: int) -> Iterator[Figure]:
    server = stack.child("feed-server", "benchmarks/feed_server.py")
    with running(server), _allowed():
        require(lambda: server.tail().strip().isdigit(), server, "print its port")
        port = int(server.tail())
        Source.objects.bulk_create(
            Source(name=f"feed {n}", agent=AGENT, location=f"http://127.0.0.{1 + n % HOSTS}:{port}/{n}")
            for n in range(feeds)
        )
        yield from _round("sources_new", feeds)
        assert SourceItem.objects.count() == 10 * feeds, "an item was lost or recorded twice"
        Source.objects.update(next_at=None)
        yield from _round("sources_unchanged", feeds)
    connections.close_all()


@contextmanager
def _allowed() -> Iterator[None]:
    given = settings.RAVI
    settings.RAVI = {**given, "SOURCE_NETWORKS": ["127.0.0.0/8"]}
    try:
        yield
    finally:
        settings.RAVI = given


def _round(name: str, feeds: int) -> list[Figure]:
    """Poll until every feed was; some are put off for a moment where a server has many."""
    begun, cpu, made = time.perf_counter(), time.process_time(), 0
    while made < feeds:
        made += poll.poll_due()
    taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
    failed = Source.objects.exclude(error="").values_list("error", flat=True).first()
    assert failed is None, failed
    return [
        Figure(f"{name}_feeds", None, feeds / taken * 60, "/min"),
        Figure(f"{name}_cpu", None, cpu / feeds * 1000, "ms"),
    ]
