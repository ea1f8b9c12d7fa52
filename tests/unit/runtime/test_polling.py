"""Sources are polled when they are due, each by one poller, and what they bring is told once, whoever dies."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ravi_django.capabilities.feeds import Item
from ravi_django.models import InboxMessage, Run, Session, Signal, Source, SourceItem
from ravi_django.testing import FakeClock
from ravi_django.wings.feeds.fetching.adapter import Polled, SourceError
from tests.support import feed_server, world
from tests.support.cases import case, refused
from tests.support.feed_server import FeedServer, polled_here, rss, serving  # noqa: F401 - a fixture
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, on_postgresql, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        server.answers["/feed"] = (200, {"ETag": '"v1"', "Last-Modified": "yesterday"}, rss("two", "one"))
        yield server


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sources of the kind `adapter` come to what a function of the test says."""
    world.patch(monkeypatch, "pollers_by_kind", dict(world.pollers_by_kind))

    def use(poll: Any) -> None:
        async def poller(source: Source, _: Any) -> Polled:
            return await asyncio.wrap_future(in_background(poll, source))  # it may look into the database

        world.register_poller("adapter", poller)

    return use


def a_source(location: str = "", **fields: Any) -> Source:
    return feed_server.a_source(location=location, **fields)


def told() -> list[str]:
    first = [row.body["payload"]["data"]["id"] for row in InboxMessage.objects.order_by("id")]
    return first + [signal.payload["id"] for signal in Signal.objects.order_by("id")]


def due_again() -> None:
    Source.objects.update(next_at=None, polling_until=None)


def wait_s(source: Source) -> float:
    source.refresh_from_db()
    return (source.next_at - source.checked_at).total_seconds()


@pytest.mark.sqlite
def test_a_feed_is_polled_its_items_told_and_what_has_not_changed_is_not_read_again(server: FeedServer) -> None:
    source = a_source(server.url(), every_s=600, failures=3, error="it was away")

    assert world.poll_due() == 1

    assert told() == ["one", "two"]
    assert 600 <= wait_s(source) <= 660
    assert (source.etag, source.modified) == ('"v1"', "yesterday")
    assert (source.failures, source.error, source.polling_until) == (0, "", None)
    due_again()
    world.poll_due()
    server.answers["/feed"] = (200, {"ETag": '"v2"'}, rss("three", "two"))
    due_again()
    world.poll_due()
    assert [headers.get("if-none-match") for _, headers in server.seen] == [None, '"v1"', '"v1"']
    assert told() == ["one", "two", "three"]


def test_what_is_not_due_is_left_alone(server: FeedServer) -> None:
    later = timezone.now() + timedelta(hours=1)
    for fields in ({"enabled": False}, {"next_at": later}, {"polling_until": later}):
        a_source(server.url(), **fields)
    for kind in ("webhook", "model"):
        a_source(server.url(), kind=kind)

    assert world.poll_due() == 0
    assert server.seen == []
    assert not world.any_source_due(world.pollers())


def test_failures_wait_twice_as_long_each_time_and_a_day_at_the_most(server: FeedServer, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": []}
    source, waits = a_source(server.url(), every_s=900), []
    for _ in range(9):
        world.poll_due()
        waits.append(wait_s(source))
        due_again()

    for number, waited in enumerate(waits):
        assert min(900 * 2**number, 86400) <= waited <= 1.1 * min(900 * 2**number, 86400)
    assert source.failures == 9
    assert "in a network that is not allowed" in source.error
    assert server.seen == []


def test_what_the_other_side_wishes_is_waited_for(kind: Any) -> None:
    wishes = [Polled(wait_s=5000), Polled(next_in_s=5000)]

    def poll(source: Source) -> Polled:
        if not wishes:
            raise SourceError("busy", retry_after=5000)
        return wishes.pop()

    kind(poll)
    source = a_source(every_s=60)
    for _ in range(3):
        world.poll_due()
        assert 5000 <= wait_s(source) <= 5500
        due_again()
    assert source.error == "busy"


def test_a_feed_that_moved_for_good_is_polled_there_and_one_that_is_gone_is_switched_off(server: FeedServer) -> None:
    server.answers["/old"] = (301, {"Location": "/feed"}, b"")
    source = a_source(server.url("/old"))
    for _ in range(2):
        world.poll_due()
        due_again()
    source.refresh_from_db()
    assert server.paths() == ["/old", "/feed", "/feed"]
    assert (source.location, source.options["moved_from"]) == (server.url(), server.url("/old"))

    server.answers["/feed"] = (410, {}, b"")
    world.poll_due()
    source.refresh_from_db()
    assert not source.enabled
    assert "410 Gone" in source.error


def test_what_nobody_can_be_told_of_comes_again_when_somebody_can(server: FeedServer) -> None:
    source = a_source(server.url(), agent="test/later")
    world.poll_due()
    source.refresh_from_db()
    assert (source.etag, source.failures, SourceItem.objects.count()) == ("", 1, 0)
    assert "there is no agent test/later" in source.error

    Source.objects.update(agent="test/code")
    due_again()
    world.poll_due()

    assert told() == ["one", "two"]


def test_entries_without_an_identity_of_their_own_are_told_apart_or_named(server: FeedServer) -> None:
    """Of one link each is an item; of one id the newest, and the source says that there were others."""
    entry = "<item><title>{}</title><link>https://x.test/</link>{}</item>".format
    feed = "<rss version='2.0'><channel>{}</channel></rss>".format
    server.answers["/links"] = (200, {}, feed(entry("two", "") + entry("one", "")).encode())
    same = entry("b", "<guid>1</guid>") * 2
    server.answers["/same"] = (200, {}, feed(same).encode())
    server.answers["/ids"] = (200, {}, feed(same + entry("a", "<guid>1</guid>")).encode())
    sources = [a_source(server.url(path), name=path) for path in ("/links", "/same", "/ids")]

    assert world.poll_due() == 3

    titles = [list(source.items.order_by("id").values_list("title", flat=True)) for source in sources]
    assert titles == [["one", "two"], ["b"], ["b"]]
    assert [Source.objects.get(id=source.id).error for source in sources] == [
        "", "", "entries not delivered because a newer entry has the same id: 1; each entry needs its own id"
    ]  # fmt: skip


def test_one_that_fails_or_is_odd_holds_up_no_other(kind: Any, server: FeedServer) -> None:
    def poll(source: Source) -> Polled:
        raise RuntimeError("a bug of the adapter")

    kind(poll)
    odd, good = a_source(), a_source(server.url())
    bad = a_source(server.url("/nothing"), kind="feed")

    assert world.poll_due() == 3

    errors = {source.id: source.error for source in Source.objects.all()}
    assert errors == {
        odd.id: "RuntimeError: a bug of the adapter",
        good.id: "",
        bad.id: "the server answered 404 Not Found",
    }
    assert told() == ["one", "two"]


def test_what_a_poller_remembers_is_kept_among_the_options(kind: Any) -> None:
    seen = []

    def poll(source: Source) -> Polled:
        seen.append(source.options.get("state"))
        Source.objects.update(options={**source.options, "edits": True})  # by a person, meanwhile
        return Polled(state={"upto": len(seen)})

    kind(poll)
    source = a_source()
    for _ in range(2):
        world.poll_due()
        due_again()

    source.refresh_from_db()
    assert seen == [None, {"upto": 1}]
    assert source.options == {"edits": True, "state": {"upto": 2}}


@pytest.mark.parametrize("place", ["fetched", "told"])
def test_a_poller_that_dies_leaves_its_source_to_the_next_and_nothing_is_told_twice(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    class Killed(BaseException):
        """Nothing is written from here on."""

    def dies(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    a_source(server.url())
    with FakeClock() as clock:
        with monkeypatch.context() as patch:
            world.patch(patch, "deliver_items" if place == "fetched" else "source_polled", dies)
            with pytest.raises(Killed):
                world.poll_due()
        assert told() == ([] if place == "fetched" else ["one", "two"])

        assert world.poll_due() == 0  # it holds the source still
        clock.advance(world.LEASE_S + 1)
        assert world.poll_due() == 1

    assert told() == ["one", "two"]
    assert Run.objects.count() == 1


def test_a_poller_that_lost_its_source_meanwhile_writes_nothing_over_the_next_ones(kind: Any) -> None:
    def slow(source: Source) -> Polled:
        Source.objects.update(polling_until=None)
        (taken,) = world.claim_sources(["adapter"], 1, 60)
        assert world.source_polled(taken, Polled(etag="new"), 60)
        return Polled([Item(id="late")], etag="old")

    kind(slow)
    source = a_source()

    world.poll_due()

    source.refresh_from_db()
    assert source.etag == "new"
    assert told() == ["late"]


@on_postgresql
def test_two_pollers_share_what_is_due_and_each_feed_is_asked_once(server: FeedServer, monkeypatch: Any) -> None:
    source = a_source("https://example.org/feed")
    with transaction.atomic():
        assert Source.objects.select_for_update().get() == source
        assert in_background(world.claim_sources, ["feed"], 10, 60.0).result(BOUND_S) == [], "it is left to this one"
    source.delete()
    world.patch(monkeypatch, "FEEDS_AT_ONCE", 2)
    world.patch(monkeypatch, "POLLS_AT_ONCE", 2)
    for number in range(1, 21):
        server.answers[f"/{number}"] = (200, {}, rss(str(number)))
        a_source(server.url(f"/{number}", f"127.0.0.{number}"))
    server.hold.clear()

    def poll() -> int:
        return asyncio.run(world.Polls(None, 20.0).run())  # as in a process of its own

    polls = [in_background(poll) for _ in range(2)]
    until(lambda: server.at_once == 4)
    server.hold.set()
    made = [future.result(BOUND_S) for future in polls]

    assert sum(made) == 20
    assert min(made) >= 8, "each took what the other had not"
    assert sorted(server.paths()) == sorted(f"/{number}" for number in range(1, 21))
    assert sorted(told()) == sorted(str(number) for number in range(1, 21))


def test_a_crowd_of_one_server_is_put_off(server: FeedServer) -> None:
    for number in range(12):
        server.answers[f"/{number}"] = (200, {}, rss(str(number)))
        a_source(server.url(f"/{number}"))

    with FakeClock() as clock:
        first = world.poll_due()
        clock.advance(10)
        while world.poll_due():
            clock.advance(10)

    assert first == world.PER_HOST
    assert Source.objects.exclude(checked_at=None).count() == 12
    assert server.most == 1


def test_only_one_task_of_a_process_polls_and_ends_when_its_time_is_over(kind: Any) -> None:
    second: list[int] = []

    def poll(source: Source) -> Polled:
        second.append(world.poll_due())
        return Polled()

    kind(poll)
    a_source()
    a_source()

    assert world.poll_due(limit=1) == 1
    assert second == [0]
    assert world.poll_due(bound_s=-1.0) == 0
    assert world.any_source_due(["adapter"])
    Source.objects.all().delete()
    Source.objects.bulk_create(Source(name="x", agent="a/b", kind="adapter") for _ in range(50))
    with CaptureQueriesContext(connection) as queries:
        claimed = world.claim_sources(["adapter"], 100, 60)
    assert len(claimed) == 50
    assert len([query for query in queries if "ravi_source" in query["sql"]]) == 3, "many cost no query each"


def test_the_sweep_hints_the_polls_when_something_is_due_and_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[str] = []
    world.patch(monkeypatch, "background_hint", lambda task, *args: hints.append(task))
    with CaptureQueriesContext(connection) as queries:
        world.sweeper_sweep(send=lambda runs: [])
    assert "ravi.poll_sources" not in hints
    assert len([query for query in queries if "ravi_source" in query["sql"] and "next_at" in query["sql"]]) == 1

    a_source("https://example.org/feed")
    world.sweeper_sweep(send=lambda runs: [])

    assert hints.count("ravi.poll_sources") == 1


def test_without_a_broker_the_polls_are_made_in_this_process(server: FeedServer, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    source = a_source(server.url())
    with pytest.MonkeyPatch.context() as patch:
        world.silence(patch, "dispatch_send")
        world.sources_sweep()
        until(lambda: Source.objects.exclude(checked_at=None).filter(id=source.id).exists())
        until(lambda: not world.sources_at_work.locked())

    assert told() == ["one", "two"]


def test_a_source_is_added_in_python_and_one_that_cannot_work_is_not() -> None:
    whole = {"kind": "feed", "location": "https://example.org/feed", "agent": "test/code"}
    ann = get_user_model().objects.create_user("ann")
    home = world.create_session(Session(owner=ann, tenant="acme"))
    strangers = world.create_session(Session())
    bad = {"kind": "telepathy", "agent": "no/body", "signal": "", "every_s": 0, "options": {"edits": "yes"}}
    bad |= {"location": "ftp://example.org", "tenant": "x" * 101, "session": strangers.id}
    for field, value in (*bad.items(), ("location", "https://example.org/" + "x" * 2000)):
        with case(value), refused(field):
            world.add_source(**{**whole, "user": ann, field: value})
    assert not Source.objects.exists()

    source = world.add_source(**whole, user=ann, tenant="acme", session=home, options={"newest": 5})

    row = Source.objects.get()
    assert row == source
    assert (row.owner, row.tenant, row.home, row.name) == (ann, "acme", home, "https://example.org/feed")
