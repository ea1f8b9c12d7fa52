"""The demo's feed server, as the process that the demo starts."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from xml.etree import ElementTree

import pytest

from project.feed_server import HEADLINES, TOPICS, FeedServer, Newsroom
from ravi_django.wings.feeds.fetching.parse import parse
from tests.support.cases import case
from tests.support.patience import seconds

HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ODD = '<script>"&\x00\x0b\u202e'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeedServer]:
    with FeedServer(tmp_path_factory.mktemp("feeds"), every_s=0) as running:
        yield running


def ask(url: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes, Message]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with HTTP.open(urllib.request.Request(url, data=data, headers=named), timeout=seconds(10)) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def titles(server: FeedServer, name: str) -> list[str]:
    body = ask(f"{server.url}/{name}")[1]
    if name.endswith(".json"):
        return [item["title"] for item in json.loads(body)["items"]]
    found = ElementTree.fromstring(body)
    atom = "{http://www.w3.org/2005/Atom}"
    items = found.findall(f"{atom}entry") or found.findall("channel/item")
    return [item.findtext(f"{atom}title") or item.findtext("title") or "" for item in items]


def test_what_is_published_leads_the_feed_whatever_it_says(server: FeedServer) -> None:
    for kind in ["rss", "atom", "json"]:
        with case(kind):
            server.publish("music", f"{ODD} {kind}", ODD)
            assert titles(server, f"music.{kind}")[0] == f'<script>"&\u202e {kind}'
            assert titles(server, f"music.{kind}")[-1] == HEADLINES["music"][0][0], "it begins with a written one"
    # an items link leads to it as a text
    for kind in ["rss", "atom", "json"]:
        with case(kind):
            server.publish("business", f"<b>{kind}", "Words.")
            _, feed, about = ask(f"{server.url}/business.{kind}")
            newest = parse(feed, about["Content-Type"], f"{server.url}/business.{kind}")[-1]
            status, body, headers = ask(newest.url)
            assert (status, body.decode()) == (200, f"<b>{kind}\n\nWords.\n")
            assert (headers.get_content_type(), headers["X-Content-Type-Options"]) == ("text/plain", "nosniff")
            assert ask(f"{server.url}/business/items/urn:uuid:0")[0] == 404


def test_what_has_not_changed_is_not_sent_again(server: FeedServer) -> None:
    _, _, headers = ask(f"{server.url}/sport.atom")
    again = ask(f"{server.url}/sport.atom", If_None_Match=headers["ETag"])
    server.publish("sport", "New", "New.")
    changed = ask(f"{server.url}/sport.atom", If_None_Match=headers["ETag"])
    assert again[:2] == (304, b"")
    assert changed[0] == 200
    assert changed[2]["ETag"] != headers["ETag"]


def test_what_is_no_item_is_refused(server: FeedServer) -> None:
    for path, body, kind, status in [
        ("science/items", b'{"title": "a", "text": "b"}', "text/plain", 415),
        ("science/items", b'{"title": 1, "text": "b"}', "application/json", 400),
        ("science/items", b"[", "application/json", 400), ("science/items", b" " * 70_000, "application/json", 413),
        ("fashion/items", b"{}", "application/json", 404), ("fashion.rss", None, "", 404),
    ]:  # fmt: skip
        with case(path, body, kind, status):
            before = titles(server, "science.rss")
            assert ask(f"{server.url}/{path}", body, Content_Type=kind)[0] == status
            assert titles(server, "science.rss") == before


def test_a_feed_keeps_its_newest_items_each_with_an_id_of_its_own() -> None:
    newsroom = Newsroom()
    for _ in range(50 * len(TOPICS)):
        newsroom.publish_next()
    found = newsroom.items("science")
    assert len(found) == len({item.id for item in found}) == 30
    assert found[0].title == HEADLINES["science"][50 % len(HEADLINES["science"])][0]
