"""Reading feeds from their servers: only what is new, never more than a bound, and politely."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ravi_django.capabilities.feeds.adapter import NotItsTurn, SourceError
from ravi_django.capabilities.feeds.turns import Turns
from ravi_django.capabilities.net.addresses import networks
from ravi_django.capabilities.net.outbound import (
    REDIRECTS,
    Lookups,
    Resolver,
    Target,
    Unreachable,
    answered,
    bounded,
    checked_address,
    joined,
    parsed,
)

MAX_REDIRECTS = 5
MAX_URL = 2000
AGE_S = 3600.0  # what a server says of its answer's age is heeded up to this
TURN_S = 60.0  # that one fetch waits for its turns, of all servers that it comes to
AFTER_S = 24 * 3600.0  # and what it says of coming back
_HEADERS = {
    "User-Agent": "ravi-django (feed reader)",
    "Accept": "application/atom+xml, application/rss+xml, application/feed+json, application/xml;q=0.9, "
    "application/json;q=0.8, */*;q=0.1",
}
_WORD = re.compile(r"[\x21-\x7e][\x20-\x7e]*\Z")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A server's answer; `body` is None when nothing has changed."""

    url: str  # that answered
    body: bytes | None
    kind: str = ""  # Content-Type as it came
    etag: str = ""
    modified: str = ""
    max_age: float = 0.0  # seconds, at most an hour
    moved: str = ""  # the feed's new address, for good


class Fetcher:
    """Fetches of one event loop; close it in the end.

    allow_addresses: networks ("10.1.0.0/16") that may be connected to though they are not public.
    max_bytes: of an answer, unpacked. timeout_s: of a fetch, redirects included, from when it is its turn.
    at_once: fetches; at one host and port there is one at a time, and `gap_s` seconds between two.
    resolver: `(host, port) -> addresses`, in place of the system's.
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
        self._turns = Turns(at_once, gap_s)

    async def fetch(self, url: str, *, etag: str = "", modified: str = "") -> Fetched:
        """GET the feed, with what the last answer said of itself. Raises SourceError, which is NotItsTurn when its
        server was not asked at all."""
        import httpx

        conditions = {"If-None-Match": etag, "If-Modified-Since": modified}
        headers = _HEADERS | {name: value for name, value in conditions.items() if value}
        try:
            return await self._follow(url, headers)
        except Unreachable as error:
            raise SourceError(str(error)) from None
        except TimeoutError:
            raise SourceError(f"there was no whole answer within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise SourceError(f"the server could not be reached: {error or type(error).__name__}") from None

    async def _follow(self, url: str, headers: dict[str, str]) -> Fetched:
        asked, moved, for_good = url, "", True
        left_s, patience_s = self._timeout_s, TURN_S
        for hop in range(MAX_REDIRECTS + 1):
            found, host, port = parsed(asked, MAX_URL)
            if port not in (80, 443) and port < 1024:
                raise SourceError(f"port {port} is not a feed's; allowed are 80, 443 and those from 1024")
            came = asyncio.get_running_loop().time()
            async with self._turn(f"{host}:{port}", patience_s, is_first=not hop):
                begun = asyncio.get_running_loop().time()
                patience_s -= begun - came
                async with asyncio.timeout(left_s):
                    address = await checked_address(host, port, self._networks, self._resolve)
                    target = Target(found, host, address)
                    async with answered("GET", target, headers, self._timeout_s) as response:
                        location = response.headers.get("location")
                        if response.status_code not in REDIRECTS or not location:
                            return await self._read(response, str(found), moved)
                left_s -= asyncio.get_running_loop().time() - begun
            asked = joined(target, location)
            for_good = for_good and response.status_code in (301, 308) and found.scheme in ("http", asked[:5])
            moved = asked if for_good else moved
        raise SourceError(f"more than {MAX_REDIRECTS} redirects")

    @asynccontextmanager
    async def _turn(self, server: str, patience_s: float, *, is_first: bool) -> AsyncIterator[None]:
        waiting = asyncio.timeout(patience_s)
        try:
            async with waiting, self._turns.of(server):
                waiting.reschedule(None)
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            words = f"{server} had no time for it within {TURN_S:g} s: too much else is asked of it"
            raise (NotItsTurn if is_first else SourceError)(words) from None

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
            raise SourceError("the server says that this feed is gone for ever (410); it is switched off", gone=True)
        if status != 200:
            after = _retry_after(headers.get("retry-after", "")) if status in (429, 503) else None
            raise SourceError(
                f"the server answered {status} {response.reason_phrase[:100]}".rstrip(), retry_after=after
            )
        length = headers.get("content-length", "")
        body, is_cut = (b"", True) if _is_more(length, self._max_bytes) else await bounded(response, self._max_bytes)
        if is_cut:
            raise SourceError(f"the feed has more than {self._max_bytes} bytes, which is RAVI['SOURCE_MAX_BYTES']")
        return Fetched(url, body, headers.get("content-type", "")[:200], **known)

    def close(self) -> None:
        self._lookups.close()


def _is_more(length: str, limit: int) -> bool:
    return length.isdecimal() and (len(length) > 18 or int(length) > limit)


def _word(value: str, longest: int) -> str:
    """A header that is given back as it came, or not at all."""
    return value if len(value) <= longest and _WORD.match(value) else ""


def _max_age(header: str) -> float:
    found = re.search(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", header, re.IGNORECASE)
    return min(float(found[1]), AGE_S) if found else 0.0


def _retry_after(header: str) -> float | None:
    """Seconds, of a number of them or a date."""
    if re.fullmatch(r"\d{1,9}", header.strip()):
        return min(float(header), AFTER_S)
    try:
        when = parsedate_to_datetime(header)
    except (TypeError, ValueError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - datetime.now(UTC)).total_seconds(), 0.0), AFTER_S)
