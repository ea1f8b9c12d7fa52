"""The demo's newsroom: a small server of made-up news, which publishes an item every few seconds.

    python -m project.feed_server PORT    serve on 127.0.0.1

    GET  /science.rss  /sport.atom  /music.json  …    every topic in every format, with an ETag
    GET  /science/items/ID                            an item by itself, a text
    POST /science/items {"title": …, "text": …}       publish one at once

FEED_EVERY_S is how often it publishes by itself, in turn for each topic; 0 is never.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape, quoteattr

from project.process import Child
from project.services import Service

EVERY_S = 10.0
# Made-up news of nobody in particular, by topic: a headline and two sentences each.
HEADLINES: dict[str, list[list[str]]] = json.loads(Path(__file__).with_name("headlines.json").read_text())
TOPICS = tuple(HEADLINES)
KEPT = 30  # items of a topic
MAX_BODY = 64 * 1024  # bytes

_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # in no escaped form either

_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a proxy to our own machine


class FeedServer(Service):
    """The server as a process of the demo. It keeps nothing: after a restart it begins with new items."""

    name = "feeds"

    def __init__(self, data_dir: Path | str, *, log: Path | None = None, every_s: float | None = None) -> None:
        super().__init__(data_dir, log=log)
        self.every_s = every_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def publish(self, topic: str, title: str, text: str) -> str:
        """Publish at once; the item's id."""
        return publish(self.url, topic, title, text)

    def _prepare(self) -> Child:
        return Child(
            self.name,
            [sys.executable, "-m", "project.feed_server", str(self.port)],
            log=self.log,
            pid_file=self.data_dir / "pid",
            env={} if self.every_s is None else {"FEED_EVERY_S": f"{self.every_s:g}"},
            cwd=Path(__file__).resolve().parent.parent,
        )

    def _ready(self) -> bool:
        try:
            with _HTTP.open(self.url, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def publish(url: str, topic: str, title: str, text: str) -> str:
    request = urllib.request.Request(  # noqa: S310
        f"{url}/{topic}/items",
        data=json.dumps({"title": title, "text": text}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with _HTTP.open(request, timeout=10) as answer:
        return str(json.load(answer)["id"])


@dataclass(frozen=True, slots=True)
class Item:
    title: str
    text: str
    id: str = field(default_factory=lambda: f"urn:uuid:{uuid4()}")
    at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))


class Newsroom:
    """The items of every topic, newest first."""

    def __init__(self) -> None:
        self._items: dict[str, list[Item]] = {topic: [] for topic in TOPICS}
        self._lock = threading.Lock()
        self._written = self._in_turn()
        for _ in TOPICS:  # nobody is to meet an empty page
            self.publish_next()

    def publish(self, topic: str, item: Item) -> Item:
        with self._lock:
            self._items[topic] = [item, *self._items[topic]][:KEPT]
        return item

    def publish_next(self) -> Item:
        topic, title, text = next(self._written)
        return self.publish(topic, Item(title, text))

    def items(self, topic: str) -> list[Item]:
        with self._lock:
            return list(self._items[topic])

    @staticmethod
    def _in_turn() -> Iterator[tuple[str, str, str]]:
        """One of each topic after the other, and from the beginning when all are told."""
        rounds = zip(*HEADLINES.values(), strict=True)
        return itertools.cycle(
            [(topic, title, text) for one in rounds for topic, (title, text) in zip(TOPICS, one, strict=True)]
        )


def place_of(topic: str, item: Item, url: str) -> str:
    return f"{url}{topic}/items/{item.id}"


def rss(topic: str, items: list[Item], url: str) -> str:
    entries = "".join(
        f'<item><guid isPermaLink="false">{escape(item.id)}</guid><title>{escape(item.title)}</title>'
        f"<link>{escape(place_of(topic, item, url))}</link>"
        f"<description>{escape(item.text)}</description><pubDate>{format_datetime(item.at)}</pubDate></item>"
        for item in items
    )
    head = f"<title>Demo {topic}</title><link>{escape(url)}</link><description>Made-up {topic} news</description>"
    return f'<?xml version="1.0" encoding="utf-8"?><rss version="2.0"><channel>{head}{entries}</channel></rss>'


def atom(topic: str, items: list[Item], url: str) -> str:
    entries = "".join(
        f"<entry><id>{escape(item.id)}</id><title>{escape(item.title)}</title><summary>{escape(item.text)}</summary>"
        f"<link href={quoteattr(place_of(topic, item, url))}/>"
        f"<updated>{item.at.isoformat()}</updated></entry>"
        for item in items
    )
    newest = items[0].at if items else datetime(2000, 1, 1, tzinfo=UTC)
    head = f"<id>urn:demo:{topic}</id><title>Demo {topic}</title><updated>{newest.isoformat()}</updated>"
    head += f"<link href={quoteattr(url)}/><author><name>Demo newsroom</name></author>"
    return f'<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom">{head}{entries}</feed>'


def json_feed(topic: str, items: list[Item], url: str) -> str:
    entries = [
        {
            "id": item.id,
            "url": place_of(topic, item, url),
            "title": item.title,
            "content_text": item.text,
            "date_published": item.at.isoformat(),
        }
        for item in items
    ]
    feed = {"version": "https://jsonfeed.org/version/1.1", "title": f"Demo {topic}", "home_page_url": url}
    return json.dumps({**feed, "items": entries})


FORMATS: dict[str, tuple[str, Callable[[str, list[Item], str], str]]] = {
    "rss": ("application/rss+xml; charset=utf-8", rss),
    "atom": ("application/atom+xml; charset=utf-8", atom),
    "json": ("application/feed+json", json_feed),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self.path == "/":
            names = [f"/{topic}.{kind}" for topic in TOPICS for kind in FORMATS]
            self._answer(200, "application/json", json.dumps({"feeds": names}).encode())
            return
        topic, _, id = self.path.removeprefix("/").partition("/items/")
        if topic in TOPICS:
            self._show(next((item for item in self.server.newsroom.items(topic) if item.id == id), None))
            return
        topic, _, kind = self.path.removeprefix("/").partition(".")
        if topic not in TOPICS or kind not in FORMATS:
            self._refuse(404, f"there is no {self.path}")
            return
        content_type, write = FORMATS[kind]
        body = write(topic, self.server.newsroom.items(topic), f"http://127.0.0.1:{self.server.server_port}/").encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        if self.headers.get("If-None-Match") == etag:
            self._answer(304, "", b"", etag)
        else:
            self._answer(200, content_type, body, etag)

    def do_POST(self) -> None:
        topic, _, rest = self.path.removeprefix("/").partition("/")
        length = self.headers.get("Content-Length", "")
        if topic not in TOPICS or rest != "items":
            self._refuse(404, f"there is no {self.path}")
        elif not length.isdecimal() or int(length) > MAX_BODY:
            self._refuse(413, f"an item has at most {MAX_BODY} bytes")
        elif self.headers.get_content_type() != "application/json":  # which no other site's form can send
            self._refuse(415, "send application/json")
        else:
            self._publish(topic, self.rfile.read(int(length)))

    def _show(self, item: Item | None) -> None:
        if item is None:
            self._refuse(404, f"there is no {self.path}: the newest {KEPT} of a topic are kept")
        else:
            self._answer(200, "text/plain; charset=utf-8", f"{item.title}\n\n{item.text}\n".encode())

    def _publish(self, topic: str, body: bytes) -> None:
        try:
            given = json.loads(body)
            item = Item(_NOT_XML.sub("", given["title"]), _NOT_XML.sub("", given["text"]))
        except (ValueError, TypeError, KeyError):
            self._refuse(400, "an item is an object with the texts title and text")
            return
        self.server.newsroom.publish(topic, item)
        self._answer(201, "application/json", json.dumps({"id": item.id}).encode())

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # its body may not have been read
        self._answer(status, "application/json", json.dumps({"error": message}).encode())

    def _answer(self, status: int, content_type: str, body: bytes, etag: str = "") -> None:
        self.send_response(status)
        if etag:
            self.send_header("ETag", etag)
        if status != 304:
            self.send_header("Content-Type", content_type)
            self.send_header("X-Content-Type-Options", "nosniff")  # a text is no page, whatever it says
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: it is polled every few seconds."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.newsroom = Newsroom()


def serve(port: int, every_s: float) -> None:
    """Publish and answer until told to end."""
    server = Server(port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    never = threading.Event()
    while not never.wait(every_s or None):
        print(f"published: {server.newsroom.publish_next().title}", flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(os.environ.get("FEED_EVERY_S") or EVERY_S))
