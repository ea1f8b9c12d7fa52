"""Directories that hang, such as those of a server that is away: each is its source's alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.capabilities.feeds.polled import Polled
from ravi_django.models import InboxMessage, Signal, Source
from tests.support import world
from tests.support.feed_server import FeedServer, rss, serving
from tests.support.patience import BOUND_S
from tests.support.runs import code, in_background, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _here(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("new_source_item")

    code(read)
    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": ["127.0.0.0/8"], "SOURCE_GAP_S": 0.0}
    world.patch(monkeypatch, "SOURCES_LOOK_S", 0.01)


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """What hangs waits for it."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        yield server


def a_source(name: str, location: str = "", kind: str = "drop") -> Source:
    return Source.objects.create(name=name, agent="test/code", location=location, kind=kind, every_s=3600)


def polled_again(*found: Source) -> None:
    Source.objects.filter(id__in=[source.id for source in found]).update(next_at=None)
    assert in_background(world.poll_due).result(BOUND_S) == len(found)
    for source in found:
        source.refresh_from_db()


def test_directories_that_hang_when_files_are_put_aside(monkeypatch: pytest.MonkeyPatch, go: threading.Event) -> None:
    world.patch(monkeypatch, "pollers_by_kind", {})
    world.patch(monkeypatch, "AFTER_S", 0.2)

    async def poll(source: Source, _: Any) -> Polled:
        hanging = source.name.startswith("slow")
        return Polled([Item(id=source.name)], etag="read", after=(lambda: str(go.wait())) if hanging else None)

    world.register_poller("drop", poll)
    slow = [a_source(f"slow {number}") for number in range(world.DB_THREADS + 1)]
    good = a_source("good")

    polled_again(*slow, good)

    assert (good.etag, good.error) == ("read", "")
    assert {(source.failures, source.etag, source.polling_until) for source in slow} == {(1, "", None)}
    assert all("no answer within 0.2 s" in source.error for source in slow)

    polled_again(*slow)
    assert all("hangs in it still" in source.error and source.failures == 2 for source in slow)
    go.set()
    until(lambda: not any(thread.name == "ravi-own" for thread in threading.enumerate()))
    polled_again(*slow)
    assert {(source.failures, source.etag, source.error) for source in slow} == {(0, "read", "True")}
    assert (InboxMessage.objects.count(), Signal.objects.count()) == (len(slow) + 1, 0), "each was told once"


def test_directories_that_hang_when_they_are_read(
    server: FeedServer, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> None:
    settings.RAVI = {**settings.RAVI, "DROP_ROOTS": [str(tmp_path)]}
    look = world.drops_look
    hanging = [a_source("slow", str(tmp_path / str(number))) for number in range(4)]

    def hang(location: str, options: Any) -> Polled:
        if location != str(tmp_path):
            go.wait()
        return look(location, options)

    world.patch(monkeypatch, "drops_look", hang)
    polls = in_background(world.poll_due)
    until(lambda: not Source.objects.filter(polling_until=None).exists())
    server.answers["/feed"] = (200, {"ETag": "read"}, rss("one"))
    feed, near = a_source("feed", server.url(), "feed"), a_source("near", str(tmp_path))

    until(lambda: Source.objects.filter(id__in=[feed.id, near.id], checked_at__isnull=False).count() == 2)

    for source in (feed, near):
        source.refresh_from_db()
        assert (source.error, source.failures) == ("", 0)
    assert Source.objects.filter(checked_at=None).count() == len(hanging), "they hang meanwhile"
    go.set()
    assert polls.result(BOUND_S) == len(hanging) + 2


def test_a_feed_that_no_thread_has_time_for_is_put_off_without_a_failure(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> None:
    begun = []

    def hang(*args: Any) -> list[Item]:
        begun.append(args)
        go.wait()
        return []

    world.patch(monkeypatch, "polling_parse", hang)
    world.patch(monkeypatch, "WAIT_S", 0.1)
    for number in range(world.POLLING_PARSERS + 1):
        server.answers[f"/{number}"] = (200, {"ETag": "read"}, rss("one"))
        a_source("feed", server.url(f"/{number}"), "feed")
    polls = in_background(world.poll_due)

    until(lambda: Source.objects.filter(polling_until=None, failures=0, error="", next_at__isnull=False).exists())

    assert len(begun) == world.POLLING_PARSERS
    go.set()
    polls.result(BOUND_S)
    assert Source.objects.filter(etag="read", failures=0).count() == world.POLLING_PARSERS


def test_a_feed_that_waited_to_be_read_has_its_whole_time_then(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> None:
    real, begun = world.polling_parse, []

    def hang(*args: Any) -> Any:
        begun.append(args)
        if len(begun) <= world.POLLING_PARSERS:
            go.wait()
        return real(*args)

    world.patch(monkeypatch, "polling_parse", hang)
    world.patch(monkeypatch, "THREAD_S", 0.3)
    for number in range(world.POLLING_PARSERS + 1):
        server.answers[f"/{number}"] = (200, {"ETag": "read"}, rss("one"))
        a_source("feed", server.url(f"/{number}"), "feed")

    assert in_background(world.poll_due).result(BOUND_S) == world.POLLING_PARSERS + 1

    assert Source.objects.filter(failures=1, error__contains="no answer within 0.3 s").count() == world.POLLING_PARSERS
    assert Source.objects.filter(etag="read", failures=0).count() == 1
