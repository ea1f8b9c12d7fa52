"""A server of feeds and pages for tests: answers by path, and remembers who asked for what, how many at once."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ravi_django.models import Source
from tests.support import world
from tests.support.patience import seconds
from tests.support.runs import code

ITEM = "<item><guid>{0}</guid><title>{0}</title><link>https://example.org/{0}</link></item>"


def rss(*names: str) -> bytes:
    """A feed of these items, the newest first as feeds have it."""
    return f'<rss version="2.0"><channel>{"".join(map(ITEM.format, names))}</channel></rss>'.encode()


class FeedServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("", 0), _Handler)  # at every 127.0.0.x
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.methods: list[str] = []
        self.begun: list[float] = []
        self.at_once = self.most = 0
        self.hold = threading.Event()  # answers wait for it
        self.hold.set()
        self.lock = threading.Lock()

    def url(self, path: str = "/feed", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FeedServer

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.server.methods.append(self.command)
            self.server.begun.append(time.monotonic())
            self.server.at_once += 1
            self.server.most = max(self.server.most, self.server.at_once)
        try:
            self.server.hold.wait(seconds(20))
            self._answer(*self.server.answers.get(self.path, (404, {}, b"nothing here")))
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if headers.get("ETag") and self.headers.get("If-None-Match") == headers["ETag"]:
            status, body = 304, b""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(BrokenPipeError, ConnectionResetError):  # it had read enough
                self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None:
        """Quietly."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[FeedServer]:
    server = FeedServer()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.hold.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def polled_here(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds of this host may be polled, for an agent that reads them."""

    async def read(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("new_source_item")

    code(read)
    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": ["127.0.0.0/8"]}
    world.patch(monkeypatch, "FEEDS_GAP_S", 0.0)
    world.patch(monkeypatch, "POLL_GAP_S", 0.0)
    world.patch(monkeypatch, "SOURCES_LOOK_S", 0.01)


@pytest.fixture(name="server")
def one_server() -> Iterator[FeedServer]:
    with serving() as server:
        yield server


def a_source(name: str = "News", location: str = "", **fields: Any) -> Source:
    """Of a feed where it has a location, else of the kind `adapter`, for which a test registers a poller."""
    kind = "feed" if location else "adapter"
    return Source.objects.create(**{"name": name, "agent": "test/code", "location": location, "kind": kind, **fields})
