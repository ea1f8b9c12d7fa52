"""How a source is polled, by its kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ravi_django.capabilities.feeds.fetch import Fetcher
from ravi_django.capabilities.feeds.parse import NEWEST, parse
from ravi_django.capabilities.feeds.polled import NotItsTurn, Polled, SourceError
from ravi_django.conf import conf
from ravi_django.models import Source
from ravi_django.runtime.own_thread import Hangs, on_own_thread

T = TypeVar("T")

THREAD_S = 60.0  # what a poll does on a thread is given up after this
PARSERS = 2  # feeds that are parsed at a time: that takes the CPU
WAIT_S = 60.0  # that a feed waits for its turn to be parsed


class Polling:
    """What the polls of one event loop share; close it in the end."""

    def __init__(self) -> None:
        self.fetcher = Fetcher(
            allow_addresses=conf.SOURCE_NETWORKS,
            max_bytes=int(conf.SOURCE_MAX_BYTES),
            timeout_s=float(conf.SOURCE_TIMEOUT_S),
            at_once=int(conf.SOURCE_CONCURRENCY),
            gap_s=float(conf.SOURCE_GAP_S),
        )
        self._parsers = asyncio.Semaphore(PARSERS)

    async def on_thread(
        self, source: Source, function: Callable[..., T], *args: Any, within_s: float | None = None
    ) -> T:
        """Run what may hang, such as a disk, and knows no database, on a thread of its own. Raises SourceError after 60
        seconds or `within_s`, and at once while what an earlier poll of the source began there has not ended."""
        try:
            return await on_own_thread(source.id, partial(function, *args), THREAD_S if within_s is None else within_s)
        except Hangs as error:
            raise SourceError(str(error)) from None

    async def on_parser(self, source: Source, function: Callable[..., T], *args: Any) -> T:
        """`on_thread` for what takes the CPU: two at a time. Raises NotItsTurn when there is no room for 60 seconds."""
        waiting = asyncio.timeout(WAIT_S)
        try:
            async with waiting, self._parsers:
                waiting.reschedule(None)
                return await self.on_thread(source, function, *args)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise NotItsTurn(f"too much else was read for {WAIT_S:g} s") from None

    def close(self) -> None:
        self.fetcher.close()


Poller = Callable[[Source, Polling], Awaitable[Polled]]

_pollers: dict[str, Poller] = {}


def register_poller(kind: str, poller: Poller) -> None:
    """Have sources of this kind polled by `async (source, polling) -> Polled`. It raises SourceError when there is
    nothing to be had; it writes nothing: what it returns is told and recorded for it, again after a crash."""
    _pollers[str(kind)] = poller


def pollers() -> dict[str, Poller]:
    return dict(_pollers)


async def poll_feed(source: Source, polling: Polling) -> Polled:
    found = await polling.fetcher.fetch(source.location, etag=source.etag, modified=source.modified)
    if found.body is None:
        # A 304 may leave out what it says of the feed: then that stays true.
        return Polled((), found.etag or None, found.modified or None, found.max_age, found.moved)
    items = await polling.on_parser(source, parse, found.body, found.kind, found.url, _newest(source.options))
    return Polled(items, found.etag, found.modified, found.max_age, found.moved)


def _newest(options: dict[str, Any]) -> int:
    given = options.get("newest")
    return min(max(given, 1), NEWEST) if isinstance(given, int) else NEWEST


register_poller(Source.Kind.FEED, poll_feed)
