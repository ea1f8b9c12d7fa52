"""The short-lived, numbered event buffer of each run tree: in Valkey or Redis, or in a table on a site without.

Both are synchronous and safe from any thread. The numbers of a tree rise by one. The buffer refuses deltas of an older
epoch than one that it has seen of the run, so a zombie cannot stream. It takes durable frames of any epoch, once by
key: the fence has let their rows in. It refuses an end that a retry has overtaken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Exists, Max, OuterRef
from django.utils.module_loading import import_string

from ravi_django.conf import broker_url, conf
from ravi_django.db import Bytes, connection, transaction
from ravi_django.live.streams.frames import Frame
from ravi_django.models import Run, StreamFrame

POLL_S = 5.0  # readers look again after this time: a hint may be lost
LIVE_S = 30  # a topic has a reader for this time after one has asked for it
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


class BufferLocked(Exception):
    """Another transaction has locked the root's row: try again later."""


class EventBuffer(Protocol):
    def append(self, batches: list[Batch]) -> list[list[int] | Exception]:
        """For each batch its numbers (0: a copy of a durable frame, -1: refused), or Lost, MarkReached or Locked."""

    def read(self, tree: str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]] | None:
        """Frames with a number above `after`, in order; None when the buffer does not have the tree as a whole. The
        server sends at most `room` bytes of frames, but always one frame."""

    def newest(self, tree: str, before: int | None, limit: int) -> list[dict[str, Any]]:
        """The last frames, of those with a number below `before`; the newest first."""

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
        valkey = "ravi_django.live.streams.valkey.ValkeyBuffer"
        _buffers[url] = DatabaseBuffer() if url is None else import_string(valkey)(url)
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


TICK_S = 0.2
REQUESTS_TICK_S = 2.0


class DatabaseBuffer:
    def append(self, batches: list[Batch]) -> list[list[int] | Exception]:
        outcomes: list[list[int] | Exception] = []
        for batch in batches:
            try:
                outcomes.append(self._append(batch))
            except DatabaseError as error:  # the other trees continue
                outcomes.append(error)
        return outcomes

    def _append(self, batch: Batch) -> list[int] | Exception:
        """Under the root row's lock: one writer of numbers at a time, and epochs are read from the rows."""
        with transaction.atomic():
            roots = Run.objects.filter(id=batch.tree)
            root = roots.select_for_update(no_key=True, skip_locked=batch.skip_locked)
            newest = root.values_list("lease_epoch", flat=True).first()
            if newest is None:
                return BufferLocked() if roots.exists() else [-1] * len(batch.frames)
            end = f"{batch.tree}:done:{newest}"  # after it only a later epoch of the root continues
            runs = {frame.source.run for frame in batch.frames}
            epochs = {
                str(key): value for key, value in Run.objects.filter(id__in=runs).values_list("id", "lease_epoch")
            }
            copies = [
                frame.key or (f"{batch.writer}:{number}" if batch.writer else "")
                for number, frame in enumerate(batch.frames, batch.first)
            ]
            keys = {end, *filter(None, copies)}
            seen = set(StreamFrame.objects.filter(tree_id=UUID(batch.tree), key__in=keys).values_list("key", flat=True))
            last = StreamFrame.objects.filter(tree_id=UUID(batch.tree)).aggregate(last=Max("seq"))["last"] or 0
            numbers, rows = [], []
            for frame, key in zip(batch.frames, copies, strict=True):
                is_recorded = frame.key and frame.type != "stream.done"
                if frame.source.epoch < epochs.get(frame.source.run, 0) and not is_recorded:
                    numbers.append(-1)
                elif key and key in seen:
                    numbers.append(0)
                elif end in seen:
                    numbers.append(-1)
                else:
                    last += 1
                    seen.add(key)
                    rows.append(StreamFrame(tree_id=batch.tree, seq=last, key=key, body=json.loads(frame.encoded())))
                    numbers.append(last)
            if batch.generation:
                self._cut(batch.tree)
            StreamFrame.objects.bulk_create(rows)
        return numbers

    def _cut(self, tree: str) -> None:
        """Delete the frames from before the previous generation, which the newest frame of a beginning begins."""
        frames = StreamFrame.objects.filter(tree_id=UUID(tree))
        begun = frames.filter(body__run=tree, body__step="started", body__content=None).order_by("-seq").first()
        if begun is not None:
            frames.filter(seq__lt=begun.seq).delete()

    def read(self, tree: str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]] | None:
        rows = StreamFrame.objects.filter(tree_id=UUID(tree), seq__gt=after).order_by("seq")
        if room is not None:
            sizes = rows.values_list(Bytes("body"), flat=True)[:limit]
            limit = max(1, sum(total <= room for total in accumulate(sizes)))
        return [{"seq": seq, **body} for seq, body in rows.values_list("seq", "body")[:limit]]

    def newest(self, tree: str, before: int | None, limit: int) -> list[dict[str, Any]]:
        rows = StreamFrame.objects.filter(tree_id=UUID(tree)).order_by("-seq")
        rows = rows if before is None else rows.filter(seq__lt=before)
        return [{"seq": seq, **body} for seq, body in rows.values_list("seq", "body")[:limit]]

    def read_many(self, trees: Sequence[str], limit: int) -> list[list[dict[str, Any]]]:
        return [self.read(tree, 0, limit) or [] for tree in trees]

    def expire(self, ended: Mapping[str, int]) -> None:
        """The end stays: a retry continues its numbers."""
        ends = [f"{tree}:done:{epoch}" for tree, epoch in ended.items()]
        later = StreamFrame.objects.filter(tree_id=OuterRef("tree_id"), seq__gt=OuterRef("seq"), key__in=ends)
        StreamFrame.objects.filter(Exists(later), tree_id__in=map(UUID, ended)).delete()

    def forget(self, trees: Sequence[str]) -> None:
        """They are deleted with the trees' rows."""

    def ping(self) -> None:
        connection.ensure_connection()

    def watch(self, topic: str, every_s: float = POLL_S) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        return ticking(min(every_s, REQUESTS_TICK_S) if topic == REQUESTS else TICK_S)

    def hint(self, topic: str) -> None:
        """Watchers poll."""
