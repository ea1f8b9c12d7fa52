"""Frames as server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from pydantic_core import to_json

from ravi_django.live.streams.reading import follow, page, with_pauses
from ravi_django.services import open_streams
from ravi_django.services.open_streams import OpenStream, release, watched

log = logging.getLogger("ravi.sse")

T = TypeVar("T")

CONTENT_TYPE = "text/event-stream; charset=utf-8"
KEEP_ALIVE_S = 15.0  # proxies close a silent connection, often after 30 or 60 s
WSGI_S = 25.0  # how long a stream may hold a thread of `runserver`; the client reconnects
WSGI_POLL_S = 0.3

OPENING = b": open\n\n"  # sent at once, so that the headers arrive
KEEP_ALIVE = b": keep-alive\n\n"


def retry() -> bytes:
    """In how many milliseconds an EventSource reconnects: not all at once."""
    return b"retry: %d\n\n" % random.randint(2000, 6000)  # noqa: S311 - no secret


def _event(open_stream: OpenStream, frame: dict[str, Any]) -> bytes:
    open_stream.ended = frame["type"] == "stream.done"
    number = b"id: %d\n" % frame.get("end", frame["seq"]) if "seq" in frame else b""  # live text has none
    return b"%sevent: %s\ndata: %s\n\n" % (number, frame["type"].encode(), to_json(frame))


def stream(tree: UUID, after: int, open_stream: OpenStream) -> AsyncGenerator[bytes]:
    """Every event above `after`, until stream.done; see `events`."""
    return events(follow(tree, after, whole=open_stream.whole, only=open_stream.only), open_stream)


async def events(frames: AsyncGenerator[dict[str, Any]], open_stream: OpenStream) -> AsyncGenerator[bytes]:
    """`retry:`, then the frames as events, until they end or the stream is revoked.

    After a failure the stream ends without stream.done: the client reconnects and misses nothing.
    """
    first = retry()
    async for piece in relay(frames, open_stream, partial(_event, open_stream)):
        yield first + piece
        first = b""


async def relay(
    source: AsyncGenerator[T],
    open_stream: OpenStream,
    encode: Callable[[T], bytes],
    fault: Callable[[bool], bytes] = lambda is_slow: b"",
) -> AsyncGenerator[bytes]:
    """The encoded items of `source`, until it ends or the stream is revoked. Waits on the event loop, without a thread.
    After a failure the stream ends with `fault(False)`; after a client took nothing for SLOW_S, with `fault(True)`."""
    try:
        async with watched(open_stream), aclosing(source), aclosing(with_pauses(source, KEEP_ALIVE_S)) as coming:
            yield OPENING
            async for one in coming:
                if open_stream.revoked:
                    return
                with _closed_after(open_streams.SLOW_S, coming, source) as slow:
                    yield KEEP_ALIVE if one is None else encode(one)
                if slow:
                    await slow[0]
                    yield fault(True)
                    return
    except Exception:
        log.exception("%r: its event stream failed", open_stream.reads, extra={"action": "sse.failed"})
        yield fault(False)


@contextmanager
def _closed_after(seconds: float, *generators: AsyncGenerator[Any]) -> Iterator[list[asyncio.Task[None]]]:
    """Close the generators, and so let go of what they have read, if the block takes too long. The block goes on: only
    the server can end it."""

    async def close() -> None:
        log.info("an event stream: a slow client is cut", extra={"action": "sse.slow"})
        for one in generators:
            await one.aclose()

    closing: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, lambda: closing.append(loop.create_task(close())))
    try:
        yield closing
    finally:
        timer.cancel()


def stream_for_a_while(tree: UUID, after: int, open_stream: OpenStream) -> Iterator[bytes]:
    """As `stream`, for `runserver`: it polls on the request's thread and ends before the stream would be checked."""
    try:
        yield from _for_a_while(tree, after, open_stream)
    finally:
        release(open_stream)


def _for_a_while(tree: UUID, after: int, open_stream: OpenStream) -> Iterator[bytes]:
    yield retry() + OPENING
    begun = sent = time.monotonic()
    while True:
        frames, done = page(tree, after, whole=open_stream.whole)
        for frame in frames:
            if open_stream.only(frame):
                yield _event(open_stream, frame)
            after, sent = frame["seq"], time.monotonic()
        if done or time.monotonic() > begun + WSGI_S:
            return
        if time.monotonic() - sent > KEEP_ALIVE_S:
            yield KEEP_ALIVE
            sent = time.monotonic()
        if not frames:
            time.sleep(WSGI_POLL_S)
