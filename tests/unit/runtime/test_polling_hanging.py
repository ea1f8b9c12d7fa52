"""A poll that hangs, or holds its source for long, is its source's alone; where too much is unread none is made."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.models import Run, Signal, Source, SourceItem
from ravi_django.testing import FakeClock
from ravi_django.wings.feeds.fetching.adapter import Polled
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


def test_a_feed_that_no_thread_has_time_for_is_put_off_without_a_failure(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> None:
    real, begun = world.polling_parse, []
    put_off = Source.objects.filter(polling_until=None, failures=0, error="", next_at__isnull=False)

    def hang(*args: Any) -> Any:
        begun.append(args)
        go.wait()
        return real(*args)

    world.patch(monkeypatch, "polling_parse", hang)
    world.patch(monkeypatch, "WAIT_S", 0.1)
    for number in range(world.POLLING_PARSERS + 1):
        server.answers[f"/{number}"] = (200, {"ETag": "read"}, rss("one"))
        a_source("feed", server.url(f"/{number}"))
    polls = in_background(world.poll_due)

    until(put_off.exists)
    assert len(begun) == world.POLLING_PARSERS
    go.set()
    assert polls.result(BOUND_S) >= world.POLLING_PARSERS
    assert Source.objects.filter(etag="read", failures=0).count() >= world.POLLING_PARSERS


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    world.patch(monkeypatch, "pollers_by_kind", {})
    return lambda poller: world.register_poller("adapter", poller)


def test_who_dies_holds_its_sources_for_a_minute_and_takes_none_back_that_another_has() -> None:
    a_source()
    with FakeClock() as clock:
        (lost,) = world.claim_sources(["adapter"], 1, world.LEASE_S)
        clock.advance(59)
        assert not world.any_source_due(["adapter"])
        clock.advance(2)
        assert world.any_source_due(["adapter"])
        (taken,) = world.claim_sources(["adapter"], 1, world.LEASE_S)
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
            stolen.append(await asyncio.wrap_future(in_background(world.claim_sources, ["adapter"], 1, 60.0)))
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
