"""The short-lived, numbered event buffer of each run tree: in Valkey or Redis, or in a table on a site without.

Both are synchronous and safe from any thread. The numbers of a tree rise by one. The buffer refuses deltas of an older
epoch than one that it has seen of the run, so a zombie cannot stream. It takes durable frames of any epoch, once by
key: the fence has let their rows in. It refuses an end that a retry has overtaken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from ravi_django.conf import broker_url, conf
from ravi_django.runtime.streams.frames import Frame

POLL_S = 5.0  # readers look again after this time: a hint may be lost
REQUESTS = "requests"  # the topic of changed requests to people


@dataclass(slots=True)
class Batch:
    """Frames of one tree, in order."""

    tree: str
    frames: list[Frame]
    mark: int  # numbers up to here are reserved on the root's row
    fresh: bool  # nothing was ever published for this tree
    restart: bool = False  # the buffer was lost: continue from the mark
    writer: str = ""  # counts its frames: a batch whose answer was lost is sent again
    first: int = 0  # frames that the writer sent before this batch
    last: int = 0  # the highest number that the writer got
    generation: int = 0  # of the root: a new one deletes the frames from before the previous one
    skip_locked: bool = False  # do not wait for another transaction that has locked the root's row


class Lost(Exception):
    """The buffer has lost the tree, a part of it or its last numbers."""


class MarkReached(Exception):
    """More numbers must be reserved first; `at` is the last one used."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(at)


class Locked(Exception):
    """Another transaction has locked the root's row: try again later."""


class EventBuffer(Protocol):
    def append(self, batches: list[Batch]) -> list[list[int] | Exception]:
        """For each batch its numbers (0: a copy of a durable frame, -1: refused), or Lost, MarkReached or Locked."""

    def read(self, tree: str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]] | None:
        """Frames with a number above `after`, in order; None when the buffer does not have the tree as a whole. The
        server sends at most `room` bytes of frames, but always one frame."""

    def read_many(self, trees: Sequence[str], limit: int) -> list[list[dict[str, Any]]]:
        """The first frames of each tree, in one round trip; none when the buffer does not have it."""

    def expire(self, ended: Mapping[str, int]) -> None:
        """These trees are archived up to their end in this epoch: delete the frames before it soon."""

    def forget(self, trees: Sequence[str]) -> None:
        """The rows of these trees are deleted: delete all their frames now."""

    def ping(self) -> None:
        """Raise when the buffer cannot be reached."""

    def watch(self, topic: str, every_s: float = POLL_S) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Hints that there may be more to read of a tree or of REQUESTS. Also yields every `every_s` seconds."""

    def hint(self, topic: str) -> None:
        """Wake the watchers of a topic, in every process where the buffer can. A hint may be lost; never raises."""


def stream_url() -> str | None:
    """The Redis address for streams: the setting, else the channel layer's, else the broker's, else none. Tests with
    RAVI["ENGINE"] = "manual" need no Redis."""
    if conf.STREAM_URL or conf.ENGINE == "manual":
        return str(conf.STREAM_URL) if conf.STREAM_URL else None
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {})
    if "redis" in layer.get("BACKEND", "").lower():
        for host in layer.get("CONFIG", {}).get("hosts", []):
            if isinstance(host, str):
                return host
            if isinstance(host, dict) and "address" in host:
                return str(host["address"])
            if isinstance(host, tuple | list):
                return f"redis://{host[0]}:{host[1]}/0"
    broker = broker_url()
    return broker if conf.ENGINE == "celery" and broker.startswith(("redis://", "rediss://")) else None


_buffers: dict[str | None, EventBuffer] = {}


def get_buffer() -> EventBuffer:
    """The buffer of this site; one object a process and address."""
    url = stream_url()
    if url not in _buffers:
        name = "table.DatabaseBuffer" if url is None else "valkey.ValkeyBuffer"
        made = import_string(f"ravi_django.runtime.streams.{name}")
        _buffers[url] = made() if url is None else made(url)
    return _buffers[url]


def on_request_changed(**signal: Any) -> None:
    """Receives the signals of requests to people, after the commit."""
    get_buffer().hint(REQUESTS)


def forget_buffers() -> None:
    """After a fork: the connections belong to the parent."""
    _buffers.clear()


@asynccontextmanager
async def ticking(seconds: float) -> AsyncIterator[AsyncIterator[None]]:
    """Hints by the clock alone."""

    async def ticks() -> AsyncIterator[None]:
        while True:
            await asyncio.sleep(seconds)
            yield

    yield ticks()
