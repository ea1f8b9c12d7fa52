"""Pollers are killed at any moment, two at a time: every item of every feed is told, and once."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection

from ravi_django.models import InboxMessage, Run, Signal, Source, SourceItem
from tests.support import forks
from tests.support.feed_server import FeedServer, rss, serving
from tests.support.patience import seconds
from tests.support.runs import on_postgresql, until

FEEDS, ITEMS, KILLS = 30, 10, 4

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        for feed in range(FEEDS):
            names = [f"{feed}-{number}" for number in reversed(range(ITEMS))]
            server.answers[f"/{feed}"] = (200, {"ETag": f'"{feed}"'}, rss(*names))
        yield server


def poller() -> forks.Popen:
    database = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}"))
    return forks.Popen(["-m", "tests.support.polling_process", database], stdout=subprocess.PIPE, text=True)


def told() -> list[str]:
    first = [row.body["payload"]["data"]["id"] for row in InboxMessage.objects.all()]
    return sorted(first + [signal.payload["id"] for signal in Signal.objects.all()])


def test_every_item_is_told_once_though_pollers_are_killed(server: FeedServer) -> None:
    chance = random.Random(7)
    Source.objects.bulk_create(
        Source(name=f"feed {n}", agent="test/code", location=server.url(f"/{n}", f"127.0.0.{1 + n}"))
        for n in range(FEEDS)
    )
    pollers = [poller() for _ in range(2 + KILLS)]
    try:
        for process in pollers:
            process.stdout.readline()  # type: ignore[union-attr]
        for round_, process in enumerate(pollers[:KILLS]):
            seen = len(server.seen) + chance.randrange(3, 8)
            until(lambda seen=seen: len(server.seen) >= seen or done())
            process.kill()
            for source_id in some(round_):  # each by itself: pollers lock several, in an order of their own
                Source.objects.filter(id=source_id).update(next_at=None, etag="")
        until(done)
    finally:
        for process in pollers:
            process.kill()
        for process in pollers:
            process.communicate(timeout=seconds(10))

    assert told() == sorted(f"{feed}-{number}" for feed in range(FEEDS) for number in range(ITEMS))
    assert (SourceItem.objects.count(), Run.objects.count()) == (FEEDS * ITEMS, FEEDS)


def some(round_: int) -> list[object]:
    """Feeds that are to be read again, as if they had just changed."""
    return list(Source.objects.order_by("id").values_list("id", flat=True)[round_::3])


def done() -> bool:
    return not Source.objects.filter(checked_at=None).exists() and SourceItem.objects.count() == FEEDS * ITEMS
