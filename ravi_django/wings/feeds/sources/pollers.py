"""Poll a source, by its kind: a feed, or the site's own adapter."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ravi_django.conf import conf
from ravi_django.models import Source
from ravi_django.wings.feeds.fetching.adapter import PollDelayed, Polled, SourceError, check_polled, find_source_adapter
from ravi_django.wings.feeds.fetching.fetch import Fetcher
from ravi_django.wings.feeds.fetching.parse import NEWEST, parse
from ravi_django.wings.feeds.sources.items import STATE

END_S = 1.0  # for tasks that are left to handle their cancellation


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, which does not wait for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=END_S))
            loop.run_until_complete(asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=END_S))
        finally:
            asyncio.set_event_loop(None)
            loop.close()


T = TypeVar("T")

PARSERS = 2  # feeds that are parsed at a time
WAIT_S = 60.0  # of a feed until it is parsed
TIMEOUT_S = 20.0  # of the whole response of a feed's server, with redirects
FEEDS_AT_ONCE = 50  # feeds that one process reads at once
GAP_S = 0.2  # between two requests to one server


class Polling:
    """Shared by the polls of one event loop; close it in the end."""

    def __init__(self) -> None:
        self.fetcher = Fetcher(
            allow_addresses=conf.SOURCE_NETWORKS,
            max_bytes=int(conf.SOURCE_MAX_BYTES),
            timeout_s=TIMEOUT_S,
            at_once=FEEDS_AT_ONCE,
            gap_s=GAP_S,
        )
        self._parsers = asyncio.Semaphore(PARSERS)

    async def on_parser(self, function: Callable[..., T], *args: Any) -> T:
        """Run CPU work on a thread, two at a time. Raises PollDelayed when it cannot begin within 60 seconds."""
        waiting = asyncio.timeout(WAIT_S)
        try:
            async with waiting, self._parsers:
                waiting.reschedule(None)
                return await asyncio.to_thread(function, *args)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise PollDelayed(f"other feeds were being parsed for {WAIT_S:g} s") from None

    def close(self) -> None:
        self.fetcher.close()


Poller = Callable[[Source, Polling], Awaitable[Polled]]

_pollers: dict[str, Poller] = {}


def register_poller(kind: str, poller: Poller) -> None:
    """Poll sources of this kind by `async (source, polling) -> Polled`. It raises SourceError when the poll fails, and
    writes nothing: its result is delivered and recorded, and after a crash the poll is repeated."""
    _pollers[str(kind)] = poller


def pollers() -> dict[str, Poller]:
    return dict(_pollers)


async def poll_feed(source: Source, polling: Polling) -> Polled:
    fetched = await polling.fetcher.fetch(source.location, etag=source.etag, modified=source.modified)
    if fetched.body is None:
        # A 304 may leave out the headers: then the stored ones stay.
        return Polled((), fetched.etag or None, fetched.modified or None, fetched.max_age, fetched.moved)
    wanted = source.options.get("newest")
    newest = min(max(wanted, 1), NEWEST) if isinstance(wanted, int) else NEWEST
    items = await polling.on_parser(parse, fetched.body, fetched.kind, fetched.url, newest)
    older = len(items) - len({item.identity for item in items})
    note = f"entries not delivered because a newer entry has the same id: {older}; each entry needs its own id"
    return Polled(items, fetched.etag, fetched.modified, fetched.max_age, fetched.moved, note if older else "")


register_poller(Source.Kind.FEED, poll_feed)

POLL_S = 120.0  # of an adapter's poll


async def poll_adapter(source: Source, polling: Polling) -> Polled:
    try:
        adapter = find_source_adapter(source.location)
    except LookupError as error:
        raise SourceError(str(error.args[0])) from None
    options = copy.deepcopy(source.options)
    state = options.pop(STATE, None)
    try:
        async with asyncio.timeout(POLL_S):
            polled = await adapter.poll(state if isinstance(state, dict) else {}, options)
    except TimeoutError:
        raise SourceError(f"the adapter {source.location} took longer than {POLL_S:g} s") from None
    try:
        return check_polled(polled)
    except (TypeError, ValueError) as error:
        raise SourceError(f"the adapter {source.location}: {error}") from None


register_poller(Source.Kind.ADAPTER, poll_adapter)
