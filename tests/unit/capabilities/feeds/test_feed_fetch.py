"""Feeds are fetched only when they have changed, never beyond a bound, never from inside, and politely."""

import asyncio
import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from ravi_django.wings.feeds.fetching.adapter import SourceError
from ravi_django.wings.feeds.fetching.fetch import Fetched, Fetcher
from tests.support.cases import case
from tests.support.feed_server import FeedServer, rss, serving

BODY = rss("one")


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        server.answers["/feed"] = (200, {"Content-Type": "text/xml"}, BODY)
        yield server


def fetch(url: str, *, etag: str = "", modified: str = "", **options: Any) -> Fetched:
    async def once() -> Fetched:
        fetcher = Fetcher(**{"allow_addresses": ["127.0.0.0/8"], "gap_s": 0.0, **options})
        try:
            return await fetcher.fetch(url, etag=etag, modified=modified)
        finally:
            fetcher.close()

    return asyncio.run(once())


def refusal(url: str, **options: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        fetch(url, **options)
    return caught.value


def test_a_feed_is_fetched_and_what_it_says_of_itself_is_sent_back(server: FeedServer) -> None:
    marks = {"ETag": '"v1"', "Last-Modified": "Sat, 07 Sep 2002 00:00:01 GMT"}
    server.answers["/feed"] = (200, {"Content-Type": "text/xml", **marks}, BODY)
    first = fetch(server.url())
    second = fetch(server.url(), etag=first.etag, modified=first.modified)
    assert (first.body, first.kind, first.url) == (BODY, "text/xml", server.url())
    assert (first.etag, first.modified) == tuple(marks.values())
    assert (second.body, second.etag) == (None, '"v1"')
    asked, again = (headers for _, headers in server.seen)
    assert "if-none-match" not in asked
    assert (again["if-none-match"], again["if-modified-since"]) == tuple(marks.values())
    assert asked["user-agent"].startswith("ravi-django")


def test_what_is_kept_of_an_answer(server: FeedServer) -> None:
    # a mark that cannot be sent back is forgotten
    for etag in ['"' + "x" * 600 + '"', '"\xfc"']:
        with case(etag):
            server.answers["/feed"] = (200, {"ETag": etag}, BODY)
            assert fetch(server.url()).etag == ""
    # a packed feed is unpacked
    server.answers["/feed"] = (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY))
    assert fetch(server.url()).body == BODY
    # half of it is an error
    server.answers["/feed"] = (200, {"Content-Encoding": "gzip"}, gzip.compress(BODY)[:40])
    assert str(refusal(server.url())) == "the server's response is incomplete: its compressed data has no end"
    # the age of an answer is heeded up to an hour
    for header, seconds in [("max-age=60", 60), ("public, Max-Age=99999999", 3600), ("no-cache", 0)]:
        with case(header, seconds):
            server.answers["/feed"] = (200, {"Cache-Control": header}, BODY)
            assert fetch(server.url()).max_age == seconds


def test_an_answer_without_end_is_given_up(server: FeedServer) -> None:
    # a feed beyond the bound is refused without being read
    for packed in [False, True]:
        with case(packed):
            body = gzip.compress(b"x" * 20_000_000) if packed else b"x" * 20_000_000
            server.answers["/feed"] = (200, {"Content-Encoding": "gzip"} if packed else {}, body)
            assert str(refusal(server.url(), max_bytes=100_000)) == (
                "the feed has more than 100000 bytes, the limit is RAVI['SOURCE_MAX_BYTES']"
            )
    # a server that does not answer is given up
    server.hold.clear()
    assert str(refusal(server.url(), timeout_s=0.2)) == "there was no complete response within 0.2 s"


def test_an_address_inside_is_not_asked(server: FeedServer) -> None:
    for networks in [[], ["10.0.0.0/8"]]:
        with case(networks):
            error = refusal(server.url(), allow_addresses=networks)
            assert "in a network that is not allowed" in str(error)
            assert server.seen == []
    # a redirect to an address inside is not followed
    server.answers["/feed"] = (302, {"Location": server.url("/secret", "127.0.0.2")}, b"")
    error = refusal(server.url(), allow_addresses=["127.0.0.1/32"])
    assert "in a network that is not allowed" in str(error)
    assert server.paths() == ["/feed"]


def test_what_is_no_address_of_the_web_is_refused() -> None:
    for url in ["file:///etc/passwd", "gopher://x", "javascript:alert(1)", "http://", "x" * 3000, ""]:
        assert "not a valid URL" in str(refusal(url)), url
    for url, words in [("http://a:b@x.test/", "a password"), ("http://127.0.0.1:25/", "port 25")]:
        assert words in str(refusal(url)), url


def test_redirects_have_an_end_and_a_move_for_good_is_told(server: FeedServer) -> None:
    server.answers["/round"] = (302, {"Location": "/round"}, b"")
    assert (str(refusal(server.url("/round"))), len(server.seen)) == ("more than 5 redirects", 6)
    # a feed that moved for good says where
    for status, moved in [(301, True), (308, True), (302, False), (307, False)]:
        with case(status, moved):
            server.answers["/old"] = (status, {"Location": "/feed"}, b"")
            found = fetch(server.url("/old"))
            assert (found.url, found.moved, found.body) == (server.url(), server.url() if moved else "", BODY)
    # a move behind a passing redirect is not for good
    server.answers["/old"] = (302, {"Location": "/middle"}, b"")
    server.answers["/middle"] = (301, {"Location": "/feed"}, b"")
    assert fetch(server.url("/old")).moved == ""


def test_errors_of_a_server(server: FeedServer) -> None:
    # gone is gone
    server.answers["/feed"] = (410, {}, b"")
    error = refusal(server.url())
    assert error.gone and "410 Gone" in str(error)
    # a server that wants to be left alone says for how long
    for status in [429, 503]:
        with case(status):
            in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
            waits = {"120": 120.0, "999999999": 86400.0, in_an_hour: 3600.0, "soon": None, "-5": None}
            for header, seconds in waits.items():
                server.answers["/feed"] = (status, {"Retry-After": header}, b"")
                assert refusal(server.url()).retry_after == (
                    None if seconds is None else pytest.approx(seconds, abs=60)
                )
    # another error is told
    server.answers["/feed"] = (500, {"Retry-After": "120"}, b"")
    error = refusal(server.url())
    assert (str(error), error.retry_after, error.gone) == ("the server answered 500 Internal Server Error", None, False)


def test_one_server_is_asked_for_one_thing_at_a_time_with_a_gap_and_others_beside_it(server: FeedServer) -> None:
    async def many() -> None:
        fetcher = Fetcher(allow_addresses=["127.0.0.0/8"], gap_s=0.05)
        try:
            urls = [server.url(), server.url(), server.url()]
            await asyncio.gather(*(fetcher.fetch(url) for url in urls))
        finally:
            fetcher.close()

    asyncio.run(many())
    assert server.most == 1
    assert all(later - earlier >= 0.05 for earlier, later in zip(server.begun, server.begun[1:], strict=False))


def test_who_waits_for_a_slow_server_takes_no_place_from_others(server: FeedServer) -> None:
    async def both(slow: FeedServer) -> Any:
        fetcher = Fetcher(allow_addresses=["127.0.0.0/8"], gap_s=0.0, at_once=2)
        hanging = [asyncio.ensure_future(fetcher.fetch(slow.url())) for _ in range(5)]
        try:
            async with asyncio.timeout(10):
                while not slow.seen:
                    await asyncio.sleep(0.005)
                return await fetcher.fetch(server.url())
        finally:
            slow.hold.set()
            await asyncio.gather(*hanging, return_exceptions=True)
            fetcher.close()

    with serving() as slow:
        slow.hold.clear()
        assert asyncio.run(both(slow)).body == BODY
