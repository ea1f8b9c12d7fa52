"""How a source is polled, by its kind: a feed, a directory of files, or the site's own adapter.

The files of a directory are moved aside only after their items are delivered. A call that may hang, such as reading a
directory on a server that does not answer, gets a daemon thread of its own: given up, it blocks neither other calls nor
the end of the process.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ravi_django.capabilities.feeds.adapter import PollDelayed, Polled, SourceError, check_polled, find_source_adapter
from ravi_django.capabilities.feeds.drop import MOST, Drop, DropError, Taken
from ravi_django.capabilities.feeds.fetch import Fetcher
from ravi_django.capabilities.feeds.parse import NEWEST, parse
from ravi_django.conf import conf
from ravi_django.models import Source
from ravi_django.runtime.sources.items import STATE

_at_work: set[Hashable] = set()
_lock = threading.Lock()


class Hangs(Exception):
    """The call took too long, or an earlier one still hangs."""


async def on_own_thread(key: Hashable, function: Callable[[], T], within_s: float) -> T:
    """Call it; raises what it raises, and Hangs after so many seconds. A call that was given up continues, and until it
    ends no other begins under its key in this process: a call that hangs costs one thread, not one per try."""
    with _lock:
        if key in _at_work:
            raise Hangs("an earlier call still hangs; check its disk or server")
        _at_work.add(key)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    try:
        threading.Thread(target=_call, args=(key, function, done), name="ravi-own", daemon=True).start()
    except RuntimeError:  # no more threads
        _leave(key)
        raise
    answer = asyncio.wrap_future(done)
    try:
        await asyncio.wait({answer}, timeout=within_s)
        if not answer.done():
            raise Hangs(f"no answer within {within_s:g} s; check its disk or server")
        return answer.result()
    finally:
        answer.cancel()


def _call(key: Hashable, function: Callable[[], T], done: Future[T]) -> None:
    try:
        answer = function()
    except BaseException as error:
        _leave(key)
        done.set_exception(error)
    else:
        _leave(key)
        done.set_result(answer)


def _leave(key: Hashable) -> None:
    with _lock:
        _at_work.discard(key)


def _after_fork() -> None:
    """The threads are the parent's."""
    global _at_work, _lock
    _at_work, _lock = set(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

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

THREAD_S = 60.0  # of a poll's call on a thread
PARSERS = 2  # feeds that are parsed at a time
WAIT_S = 60.0  # of a feed until it is parsed


class Polling:
    """Shared by the polls of one event loop; close it in the end."""

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
        """Run a function that may hang and uses no database on its own thread. Raises SourceError after 60 seconds or
        `within_s`, and at once while an earlier call for the source still runs."""
        try:
            return await on_own_thread(source.id, partial(function, *args), THREAD_S if within_s is None else within_s)
        except Hangs as error:
            raise SourceError(str(error)) from None

    async def on_parser(self, source: Source, function: Callable[..., T], *args: Any) -> T:
        """`on_thread` for CPU work: two at a time. Raises PollDelayed when it cannot begin within 60 seconds."""
        waiting = asyncio.timeout(WAIT_S)
        try:
            async with waiting, self._parsers:
                waiting.reschedule(None)
                return await self.on_thread(source, function, *args)
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
    found = await polling.fetcher.fetch(source.location, etag=source.etag, modified=source.modified)
    if found.body is None:
        # A 304 may leave out the headers: then the stored ones stay.
        return Polled((), found.etag or None, found.modified or None, found.max_age, found.moved)
    given = source.options.get("newest")
    newest = min(max(given, 1), NEWEST) if isinstance(given, int) else NEWEST
    items = await polling.on_parser(source, parse, found.body, found.kind, found.url, newest)
    older = len(items) - len({item.identity for item in items})
    note = f"entries not delivered because a newer entry has the same id: {older}; each entry needs its own id"
    return Polled(items, found.etag, found.modified, found.max_age, found.moved, note if older else "")


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
            found = await adapter.poll(state if isinstance(state, dict) else {}, options)
    except TimeoutError:
        raise SourceError(f"the adapter {source.location} took longer than {POLL_S:g} s") from None
    try:
        return check_polled(found)
    except (TypeError, ValueError) as error:
        raise SourceError(f"the adapter {source.location}: {error}") from None


register_poller(Source.Kind.ADAPTER, poll_adapter)

AT_ONCE_BYTES = 16 * 1024 * 1024  # of items held in memory; the next poll takes the rest


async def poll_drop(source: Source, polling: Polling) -> Polled:
    return await polling.on_thread(source, _look, source.location, dict(source.options))


def _look(location: str, options: dict[str, object]) -> Polled:
    try:
        drop = Drop(location, conf.DROP_ROOTS)
        names = drop.names()
        taken = list(_taken(drop, names, options))
    except DropError as error:
        raise SourceError(str(error)) from None
    items = [item for file in taken for item in file.items]
    is_rest = len(names) == MOST or len(taken) < len(names)
    return Polled(items, next_in_s=1.0 if is_rest and taken else None, after=lambda: _put_aside(location, taken))


def _taken(drop: Drop, names: Sequence[str], options: dict[str, object]) -> Sequence[Taken]:
    found: list[Taken] = []
    size = 0
    for name in names:
        file = drop.take(name, options, most=int(conf.SOURCE_MAX_BYTES), most_text=int(conf.MAX_INPUT_BYTES))
        if file is None:
            continue
        found.append(file)
        size += sum(len(item.text) + 4 * len(str(item.extra)) for item in file.items)
        if size > AT_ONCE_BYTES:
            break
    return found


def _put_aside(location: str, taken: Sequence[Taken]) -> str:
    """After a crash before this, the same files are read again, and known. Returns the errors."""
    wrong = [file.error for file in taken if file.error]
    try:
        drop = Drop(location, conf.DROP_ROOTS)
        for file in taken:
            try:
                drop.put_aside(file)
            except DropError as error:
                wrong.append(str(error))
    except DropError as error:
        wrong.append(str(error))
    return "\n".join(wrong)


register_poller(Source.Kind.DROP, poll_drop)
