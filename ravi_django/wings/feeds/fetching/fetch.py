"""Fetch feeds over HTTP: with conditional requests, limits of size and time, and one request at a time to a server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ravi_django.calls.net.outbound import (
    REDIRECTS,
    Lookups,
    Resolver,
    Target,
    answered,
    bounded,
    checked_address,
    failures_as,
    joined,
    networks,
    parsed,
)
from ravi_django.wings.feeds.fetching.adapter import PollDelayed, SourceError

MAX_REDIRECTS = 5
MAX_URL = 2000
MAX_IDLE = 1000  # queues of servers, before idle ones are removed
AGE_S = 3600.0  # the largest max-age that is used, in seconds
AFTER_S = 24 * 3600.0  # the largest Retry-After that is used, in seconds
TURN_S = 60.0  # the longest time that a fetch waits for its turns, at all servers of its redirects
_HEADERS = {
    "User-Agent": "ravi-django (feed reader)",
    "Accept": "application/atom+xml, application/rss+xml, application/feed+json, application/xml;q=0.9, "
    "application/json;q=0.8, */*;q=0.1",
}
_WORD = re.compile(r"[\x21-\x7e][\x20-\x7e]*\Z")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A server's response; `body` is None when nothing has changed."""

    url: str  # after redirects
    body: bytes | None
    kind: str = ""  # Content-Type
    etag: str = ""
    modified: str = ""
    max_age: float = 0.0  # seconds, at most an hour
    moved: str = ""  # the feed's new permanent address


@dataclass(slots=True)
class _Queue:
    """The requests to one server."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0  # by the loop's clock
    users: int = 0  # requests that wait or run


class Fetcher:
    """Fetches feeds in one event loop. Call `close` at the end.

    allow_addresses: private networks ("10.1.0.0/16") that may be connected to.
    max_bytes: the limit of a response, uncompressed.
    timeout_s: seconds for a fetch with its redirects, without the wait for its turns.
    at_once: concurrent fetches; to one host and port one at a time, with `gap_s` seconds between two.
    resolver: `(host, port) -> addresses`, instead of the system's.
    """

    def __init__(
        self,
        *,
        allow_addresses: Iterable[str] = (),
        max_bytes: int = 5 * 1024 * 1024,
        timeout_s: float = 20.0,
        at_once: int = 50,
        gap_s: float = 0.2,
        resolver: Resolver | None = None,
    ) -> None:
        self._networks = networks(allow_addresses)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._lookups = Lookups(8, room=max(at_once, 8))
        self._resolve = resolver or self._lookups.addresses
        self._room = asyncio.Semaphore(at_once)
        self._gap_s = gap_s
        self._queues: dict[str, _Queue] = {}

    async def fetch(self, url: str, *, etag: str = "", modified: str = "") -> Fetched:
        """GET the feed, with the `etag` and `modified` of the last response. Raises SourceError; PollDelayed when no
        request was sent."""
        conditions = {"If-None-Match": etag, "If-Modified-Since": modified}
        headers = _HEADERS | {name: value for name, value in conditions.items() if value}
        with failures_as(SourceError, self._timeout_s):
            return await self._follow(url, headers)

    async def _follow(self, url: str, headers: dict[str, str]) -> Fetched:
        asked, moved, for_good = url, "", True
        left_s, patience_s = self._timeout_s, TURN_S
        for hop in range(MAX_REDIRECTS + 1):
            request_url, host, port = parsed(asked, MAX_URL)
            if port not in (80, 443) and port < 1024:
                raise SourceError(f"port {port} is not allowed; use 80, 443 or a port from 1024")
            came = asyncio.get_running_loop().time()
            async with self._turn(f"{host}:{port}", patience_s, is_first=not hop):
                begun = asyncio.get_running_loop().time()
                patience_s -= begun - came
                async with asyncio.timeout(left_s):
                    address = await checked_address(host, port, self._networks, self._resolve)
                    target = Target(request_url, host, address)
                    async with answered("GET", target, headers, self._timeout_s) as response:
                        location = response.headers.get("location")
                        if response.status_code not in REDIRECTS or not location:
                            return await self._read(response, str(request_url), moved)
                left_s -= asyncio.get_running_loop().time() - begun
            asked = joined(target, location)
            for_good = for_good and response.status_code in (301, 308) and request_url.scheme in ("http", asked[:5])
            moved = asked if for_good else moved
        raise SourceError(f"more than {MAX_REDIRECTS} redirects")

    @asynccontextmanager
    async def _turn(self, server: str, patience_s: float, *, is_first: bool) -> AsyncIterator[None]:
        waiting = asyncio.timeout(patience_s)
        try:
            async with waiting, self._alone(server):
                waiting.reschedule(None)
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            text = f"other requests to {server} took more than {TURN_S:g} s; the poll is retried later"
            raise (PollDelayed if is_first else SourceError)(text) from None

    @asynccontextmanager
    async def _alone(self, server: str) -> AsyncIterator[None]:
        """One request at a time to one server. A request that waits for its server takes no slot from the others."""
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(server, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                await asyncio.sleep(max(0.0, queue.free_at - loop.time()))
                try:
                    async with self._room:
                        yield
                finally:
                    queue.free_at = loop.time() + self._gap_s
        finally:
            queue.users -= 1
            if len(self._queues) > MAX_IDLE:
                now, queues = loop.time(), self._queues.items()
                self._queues = {name: one for name, one in queues if one.users or one.free_at >= now}

    async def _read(self, response: Any, url: str, moved: str) -> Fetched:
        status, headers = response.status_code, response.headers
        known: dict[str, Any] = {
            "etag": _word(headers.get("etag", ""), 500),
            "modified": _word(headers.get("last-modified", ""), 100),
            "max_age": _max_age(headers.get("cache-control", "")),
            "moved": moved,
        }
        if status == 304:
            return Fetched(url, None, **known)
        if status == 410:
            raise SourceError("the server has removed this feed (410 Gone); the source is disabled", gone=True)
        if status != 200:
            after = _retry_after(headers.get("retry-after", "")) if status in (429, 503) else None
            raise SourceError(
                f"the server answered {status} {response.reason_phrase[:100]}".rstrip(), retry_after=after
            )
        length = headers.get("content-length", "")
        body, is_cut = (b"", True) if _is_more(length, self._max_bytes) else await bounded(response, self._max_bytes)
        if is_cut:
            raise SourceError(f"the feed has more than {self._max_bytes} bytes, the limit is RAVI['SOURCE_MAX_BYTES']")
        return Fetched(url, body, headers.get("content-type", "")[:200], **known)

    def close(self) -> None:
        self._lookups.close()


def _is_more(length: str, limit: int) -> bool:
    return length.isdecimal() and (len(length) > 18 or int(length) > limit)


def _word(value: str, longest: int) -> str:
    """A header's value; empty when it is too long or has other characters than printable ASCII."""
    return value if len(value) <= longest and _WORD.match(value) else ""


def _max_age(header: str) -> float:
    match = re.search(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", header, re.IGNORECASE)
    return min(float(match[1]), AGE_S) if match else 0.0


def _retry_after(header: str) -> float | None:
    """Seconds from now. The header has a number of seconds or a date."""
    if re.fullmatch(r"\d{1,9}", header.strip()):
        return min(float(header), AFTER_S)
    try:
        when = parsedate_to_datetime(header)
    except (TypeError, ValueError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - datetime.now(UTC)).total_seconds(), 0.0), AFTER_S)
