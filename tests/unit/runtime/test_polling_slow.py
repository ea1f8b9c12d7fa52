"""A poll that hangs, or fails in a way of its own, is its source's alone: the others are polled, and a worker ends."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ravi_django import tasks
from ravi_django.models import Source
from ravi_django.wings.feeds.fetching import fetch
from ravi_django.wings.feeds.fetching.adapter import Item, PollDelayed, Polled, SourceError
from tests.support import world
from tests.support.feed_server import FeedServer, a_source, one_server, polled_here, rss, serving  # noqa: F401
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import in_background, until
from tests.support.world import Runtime, Worker

pytestmark = pytest.mark.django_db(transaction=True)


class Polls:
    """What sources of the kind `adapter` come to, by their names."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.go = threading.Event()  # those called "slow" wait for it
        self.deaf = False  # to being cancelled

    async def __call__(self, source: Source, _: Any) -> Polled:
        self.seen.append(source.name)
        while source.name == "slow" and not self.go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if not self.deaf:
                    raise
        if source.name in self.errors:
            raise self.errors[source.name]
        return Polled([Item(id=source.name)], etag="read")


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Polls]:
    made = Polls()
    world.patch(monkeypatch, "pollers_by_kind", dict(world.pollers_by_kind))
    world.register_poller("adapter", made)
    yield made
    made.go.set()


def is_read(source: Source) -> bool:
    source.refresh_from_db()
    return source.etag == "read"


def test_an_error_or_a_note_that_no_row_can_hold_is_cleaned(polls: Polls, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest cannot send half a pair from one process to another
    monkeypatch.setattr(world.sources_log, "disabled", True)
    polls.errors = {"its own": SourceError("a\0b\ud800"), "an adapter's": RuntimeError("a\0b\ud800")}
    good, *bad = (a_source(name) for name in ("good", *polls.errors))

    assert world.poll_due() == 3

    for source in bad:
        source.refresh_from_db()
        assert source.error.endswith("a\ufffdb?")
        assert (source.failures, source.polling_until) == (1, None)
    assert is_read(good)

    async def odd(source: Source, _: Any) -> Polled:
        return Polled(note="a\0b", etag="read")

    world.register_poller("adapter", odd)
    Source.objects.all().delete()
    source = a_source("odd")
    world.poll_due()
    assert is_read(source)
    assert (source.error, source.failures) == ("a\ufffdb", 0)


@pytest.mark.parametrize("bound_s", [None, 0.5])
def test_what_becomes_due_while_one_takes_its_time_is_polled(polls: Polls, bound_s: float | None) -> None:
    """By the same task, or, when its time is over, by the next one beside it."""
    slow = a_source("slow")
    polled = in_background(lambda: world.poll_due(bound_s=bound_s) if bound_s else world.poll_due())
    until(lambda: polls.seen and not (bound_s and world.sources_at_work.locked()))
    later = a_source("later")

    if bound_s:
        assert world.poll_due() == 1
        assert not polled.done()
    until(lambda: is_read(later))
    polls.go.set()
    assert polled.result(BOUND_S) == (1 if bound_s else 2)
    assert is_read(slow)


def test_one_that_hears_of_no_end_is_given_up(polls: Polls, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "WHOLE_S", 0.1)
    polls.deaf = True
    slow, good = a_source("slow"), a_source("good")

    assert in_background(world.poll_due).result(BOUND_S) == 2

    slow.refresh_from_db()
    assert slow.error == "the poll took longer than 0.1 s"
    assert (slow.failures, slow.polling_until) == (1, None)
    assert is_read(good)


def test_one_whose_turn_did_not_come_is_put_off_and_one_that_fails_is_asked_no_more_often(polls: Polls) -> None:
    polls.errors = {"behind": PollDelayed("too much else is asked of it"), "weekly": SourceError("away")}
    behind = a_source("behind", failures=2, error="as it was", etag="old")
    weekly = a_source("weekly", every_s=7 * 86400, failures=3)

    world.poll_due()

    behind.refresh_from_db()
    assert (behind.failures, behind.error, behind.etag, behind.polling_until) == (2, "as it was", "old", None)
    assert behind.next_at is not None
    weekly.refresh_from_db()
    assert (weekly.next_at - weekly.checked_at).total_seconds() >= 7 * 86400


def test_a_server_that_polls_before_are_still_at_is_not_asked_beside(polls: Polls, server: FeedServer) -> None:
    server.answers["/slow"] = server.answers["/other"] = (200, {"ETag": "read"}, rss("one"))
    a_source("at it", server.url("/slow"))
    server.hold.clear()
    polled = in_background(lambda: world.poll_due(bound_s=0.5))
    until(lambda: server.seen and not world.sources_at_work.locked())

    other, elsewhere = a_source("other", server.url("/other")), a_source("elsewhere")
    assert world.poll_due() == 1

    other.refresh_from_db()
    assert is_read(elsewhere)
    assert (other.etag, other.polling_until, other.failures) == ("", None, 0)
    server.hold.set()
    assert polled.result(BOUND_S) == 1
    Source.objects.update(next_at=None)
    assert world.poll_due() == 3
    assert is_read(other)


async def served() -> None:
    async with Runtime(poll_s=60.0):
        pass


STOPS = {
    "celery": lambda: world.tasks_stop_claiming(),
    "a runtime": lambda: asyncio.run(served()),
    "its worker": lambda: Worker().close(),
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_a_worker_that_ends_takes_no_more_and_sees_through_what_it_has(polls: Polls, stop: Any) -> None:
    slow = a_source("slow")
    polled = in_background(world.poll_due)
    until(lambda: polls.seen)

    stop()
    until(lambda: not world.sources_at_work.locked())
    later = a_source("later")
    polls.go.set()

    assert polled.result(BOUND_S) == 1
    assert is_read(slow)
    assert not is_read(later)
    assert world.poll_due() == 1, "what is begun after it was not meant"


def test_a_worker_that_ends_waits_for_no_poll_beyond_its_time(polls: Polls, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "DRAIN_S": 0.05}
    polls.deaf = True
    slow = a_source("slow")
    polled = in_background(world.poll_due)
    until(lambda: polls.seen)

    world.background_stop()

    assert polled.result(BOUND_S) == 0
    slow.refresh_from_db()
    assert (slow.error, slow.failures) == ("", 0)
    assert slow.polling_until is not None, "the next takes it when that is over"


def test_without_a_broker_other_work_does_not_wait_behind_polls(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    go, done, polled = threading.Event(), threading.Event(), list[str]()
    poll = tasks.OF_WINGS["ravi.poll_sources"]
    monkeypatch.setattr(poll, "run", lambda number: go.wait(seconds(20)) and polled.append(number))
    monkeypatch.setattr(tasks.OF_WINGS["ravi.fan_out"], "run", done.set)
    try:
        for number in range(4):
            world.background_hint("ravi.poll_sources", str(number))
        world.background_hint("ravi.fan_out")

        assert done.wait(seconds(10))
    finally:
        go.set()
        until(lambda: len(polled) == 4)


@pytest.mark.parametrize("by_redirect", [False, True])
def test_a_turn_that_does_not_come_is_waited_for_so_long(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, by_redirect: bool
) -> None:
    monkeypatch.setattr(fetch, "TURN_S", 0.3)
    server.answers["/feed"] = (200, {}, rss("one"))
    server.hold.clear()

    async def both(moves: FeedServer) -> tuple[Any, Any]:
        fetcher = fetch.Fetcher(allow_addresses=["127.0.0.0/8"], gap_s=0.0)
        try:
            first = asyncio.create_task(fetcher.fetch(server.url()))
            async with asyncio.timeout(10):
                while not server.seen:
                    await asyncio.sleep(0.005)
            (behind,) = await asyncio.gather(
                fetcher.fetch((moves if by_redirect else server).url()), return_exceptions=True
            )
            server.hold.set()
            return await first, behind
        finally:
            fetcher.close()

    with serving() as moves:  # a second one, on a port of its own
        moves.answers["/feed"] = (302, {"Location": server.url()}, b"")
        first, behind = asyncio.run(both(moves))

    assert first.body == rss("one")
    assert type(behind) is (SourceError if by_redirect else PollDelayed), "it was asked itself, and led there"
    assert "took more than 0.3 s" in str(behind)
