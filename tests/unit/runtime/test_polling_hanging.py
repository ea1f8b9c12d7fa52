"""A poll that hangs, or holds its source for long, is its source's alone; where too much is unread none is made."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.capabilities.feeds.adapter import Polled
from ravi_django.models import InboxMessage, Run, Signal, Source, SourceItem
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.feed_server import FeedServer, a_source, one_server, polled_here, rss  # noqa: F401 - fixtures
from tests.support.runs import BOUND_S, auntil, in_background, on_postgresql, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """What hangs waits for it."""
    made = threading.Event()
    yield made
    made.set()


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
    assert all("earlier call still hangs" in source.error and source.failures == 2 for source in slow)
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
    hanging = [a_source("slow", str(tmp_path / str(number)), kind="drop") for number in range(4)]

    def hang(location: str, options: Any) -> Polled:
        if location != str(tmp_path):
            go.wait()
        return look(location, options)

    world.patch(monkeypatch, "drops_look", hang)
    polls = in_background(world.poll_due)
    until(lambda: not Source.objects.filter(polling_until=None).exists())
    server.answers["/feed"] = (200, {"ETag": "read"}, rss("one"))
    feed, near = a_source("feed", server.url()), a_source("near", str(tmp_path), kind="drop")

    until(lambda: Source.objects.filter(id__in=[feed.id, near.id], checked_at__isnull=False).count() == 2)

    for source in (feed, near):
        source.refresh_from_db()
        assert (source.error, source.failures) == ("", 0)
    assert Source.objects.filter(checked_at=None).count() == len(hanging), "they hang meanwhile"
    go.set()
    assert polls.result(BOUND_S) == len(hanging) + 2


@pytest.mark.parametrize("waits", [False, True])
def test_a_feed_that_no_thread_has_time_for_is_put_off_without_a_failure_or_has_its_whole_time_then(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, go: threading.Event, waits: bool
) -> None:
    real, begun = world.polling_parse, []
    put_off = Source.objects.filter(polling_until=None, failures=0, error="", next_at__isnull=False)

    def hang(*args: Any) -> Any:
        begun.append(args)
        if len(begun) <= world.POLLING_PARSERS:
            go.wait()
        return real(*args)

    world.patch(monkeypatch, "polling_parse", hang)
    world.patch(monkeypatch, "THREAD_S" if waits else "WAIT_S", 0.3 if waits else 0.1)
    for number in range(world.POLLING_PARSERS + 1):
        server.answers[f"/{number}"] = (200, {"ETag": "read"}, rss("one"))
        a_source("feed", server.url(f"/{number}"))
    polls = in_background(world.poll_due)

    if not waits:
        until(put_off.exists)
        assert len(begun) == world.POLLING_PARSERS
        go.set()
    assert polls.result(BOUND_S) == world.POLLING_PARSERS + 1 or not waits
    given_up = Source.objects.filter(failures=1, error__contains="no answer within 0.3 s").count()
    assert given_up == (world.POLLING_PARSERS if waits else 0)
    assert Source.objects.filter(etag="read", failures=0).count() == (1 if waits else world.POLLING_PARSERS)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    world.patch(monkeypatch, "pollers_by_kind", {})
    return lambda poller: world.register_poller("drop", poller)


def test_who_dies_holds_its_sources_for_a_minute_and_takes_none_back_that_another_has() -> None:
    a_source()
    with FakeClock() as clock:
        (lost,) = world.claim_sources(["drop"], 1, world.LEASE_S)
        clock.advance(59)
        assert not world.any_source_due(["drop"])
        clock.advance(2)
        assert world.any_source_due(["drop"])
        (taken,) = world.claim_sources(["drop"], 1, world.LEASE_S)
        clock.advance(5)

        world.renew_sources([lost], world.LEASE_S)

        assert Source.objects.get().polling_until == taken.polling_until


@on_postgresql
def test_who_lives_holds_a_source_for_as_long_as_it_reads(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "SOURCES_RENEWALS", 3000)
    stolen: list[list[Source]] = []

    async def slow(source: Source, _: Any) -> Polled:
        for _ in range(4):  # four minutes, in all
            before = source.polling_until
            clock.advance(world.LEASE_S - 1)
            await auntil(lambda before=before: source.polling_until != before)
            stolen.append(await asyncio.wrap_future(in_background(world.claim_sources, ["drop"], 1, 60.0)))
        return Polled([Item(id="one", title="one")], etag="read")

    kind(slow)
    source = a_source()
    with FakeClock() as clock:
        assert world.poll_due() == 1

    source.refresh_from_db()
    assert stolen == [[], [], [], []]
    assert (source.etag, source.polling_until) == ("read", None)
    assert SourceItem.objects.count() == 1


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_source_whose_agent_has_too_much_unread_is_put_off_unread(
    kind: Any, settings: Any, in_the_middle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_UNREAD": 3}
    polls: list[str] = []

    async def poll(source: Source, _: Any) -> Polled:
        polls.append(source.etag)
        return Polled([Item(id="more", title="more")], etag="new")

    kind(poll)
    source = a_source(etag="old")
    world.deliver_items(source, [Item(id=str(number)) for number in range(4)])
    if in_the_middle:  # it became so while the source was read
        looks = iter([lambda ids: set()])
        full_sources = world.full_sources
        world.patch(monkeypatch, "full_sources", lambda ids: next(looks, full_sources)(ids))

    made = world.poll_due()

    source.refresh_from_db()
    assert (made, polls) == ((1, ["old"]) if in_the_middle else (0, []))
    assert (source.etag, source.failures, source.error) == ("old", 0, world.DELIVERY_UNREAD)
    assert source.polling_until is None and source.next_at is not None
    assert SourceItem.objects.count() == 4

    Signal.objects.update(consumed_at="2026-11-22T12:00:00Z")
    Source.objects.update(next_at=None)
    assert world.poll_due() == 1
    source.refresh_from_db()
    assert (source.etag, source.error, Run.objects.count()) == ("new", "", 1)
    assert Signal.objects.get(consumed_at=None).payload["id"] == "more"


def test_a_process_ends_though_a_call_hangs():
    script = (
        "import asyncio, django, threading; django.setup()\n"
        "from tests.support.world import Hangs, on_own_thread\n"
        "try:\n"
        "    asyncio.run(on_own_thread('a', threading.Event().wait, 0.05))\n"
        "except Hangs:\n"
        "    print('given up')\n"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=True)

    assert ended.stdout == "given up\n"
