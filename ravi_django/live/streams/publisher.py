"""The publisher: one thread a process, which sends frames of the running agents to the event buffer.

Emitting never waits. Tokens are merged until the next flush, about 30 ms later, or more when flushing is slow. While
the buffer is away, frames wait here for a while; lost ones are made again from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress

from django.db import connections

from ravi_django.engine.db.connections import limit_waits
from ravi_django.engine.db.threads import with_retry
from ravi_django.live.streams import republish
from ravi_django.live.streams.buffer import Batch, BufferLocked, EventBuffer, Lost, MarkReached, get_buffer
from ravi_django.live.streams.frames import Frame
from ravi_django.live.streams.reading import durable_frames
from ravi_django.live.streams.republish import RESERVE, restart
from ravi_django.models import Run

log = logging.getLogger("ravi.publish")

MAX_TREES = 20_000  # trees remembered; the next lease opens a forgotten one again
FLUSH_S = 0.03  # between two flushes: tokens are merged into one frame
ARCHIVE_S = 0.5  # how often ended trees are archived, at most
MAX_PAUSE_S = 1.0  # between two flushes to a slow buffer
MAX_WAITING = 10_000  # frames of one tree kept while the buffer is away


class _Tree:
    """The state of a tree that this process streams for."""

    __slots__ = ("cut", "flying", "fresh", "generation", "last", "mark", "name", "sent", "tried", "waiting")

    def __init__(self, mark: int, fresh: bool) -> None:
        self.mark = mark
        self.fresh = fresh
        self.waiting: list[Frame] = []
        self.cut = False  # durable frames were dropped: make them again from the journal
        self.tried = 0  # the first of them, which an earlier flush may have sent
        self.flying: list[Frame] = []  # on their way to the buffer
        self.name = os.urandom(8).hex()  # of this process's part of the stream
        self.sent = 0  # frames of that part that are in the buffer
        self.last = 0  # the highest number of that part
        self.generation = 0  # of the root, when a lease of it has begun here

    def take_off(self) -> None:
        self.flying, self.waiting, self.tried = self.waiting, [], 0

    def land(self, numbers: list[int]) -> None:
        self.sent += len(self.flying)
        self.last = max([self.last, *numbers])
        self.flying, self.generation = [], 0

    def batch(self, tree: str) -> Batch:
        batch = Batch(tree, self.flying, self.mark, self.fresh, skip_locked=True)
        batch.writer, batch.first, batch.last, batch.generation = self.name, self.sent, self.last, self.generation
        return batch

    def turn_back(self) -> None:
        self.tried = len(self.flying)
        self.flying, self.waiting = [], self.flying + self.waiting


class Publisher:
    """Start it with the engine. `emit` works from any thread; `close` flushes."""

    def __init__(self, buffer: EventBuffer | None = None) -> None:
        self._buffer = buffer or get_buffer()
        self._trees: dict[str, _Tree] = {}
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closing = False
        self._hurry = threading.Event()  # a caller waits for the next flush
        self._watchers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._ended: dict[str, int] = {}  # ended trees and their epochs; used by the thread, then by `archive`
        self._archived_at = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="ravi-publish", daemon=True)
        self._thread.start()

    def open(self, run: Run) -> None:
        """A lease of this run begins: note the numbers that its tree may use."""
        root = run.root or run
        # An earlier lease that has recorded nothing counts as one that has sent nothing.
        is_first = run.lease_epoch == 1 or (run.next_seq == 1 and run.event_mark <= RESERVE)
        fresh = run.root_id is None and (is_first or run.event_mark == 0)
        with self._lock:
            tree = self._trees.setdefault(str(run.tree_id), _Tree(root.event_mark, fresh))
            tree.mark = max(tree.mark, root.event_mark)
            tree.generation = root.generation if run.root_id is None else tree.generation
            # Frames that wait here since an earlier lease are the tree's first ones.
            tree.fresh = tree.fresh and (fresh or bool(tree.flying or tree.waiting))
            if len(self._trees) > MAX_TREES:  # trees that ended in other processes
                self._trees = {key: other for key, other in self._trees.items() if other.waiting or other is tree}

    def emit(self, *new: Frame) -> None:
        """Queue frames, in order. Never waits, never raises."""
        with self._lock:
            for frame in new:
                tree = self._trees.get(frame.source.tree)
                if tree is None:
                    continue
                if len(tree.waiting) > tree.tried and tree.waiting[-1].absorb(frame):
                    continue
                if len(tree.flying) + len(tree.waiting) < MAX_WAITING or frame.type == "stream.done":
                    tree.waiting.append(frame)
                else:
                    tree.cut = tree.cut or bool(frame.key)
        if not self._dirty.is_set():  # `set` takes a lock; between two flushes it is set already
            self._dirty.set()

    async def begun(self, tree: str) -> None:
        """Wait until the first frames of a tree are sent: another process would think that the buffer lost them."""
        if (known := self._trees.get(tree)) is not None and known.fresh:
            await self.sent(tree)

    async def sent(self, tree: str, timeout: float = 1.0) -> None:
        """Wait until the frames emitted so far for a tree are sent: frames of the run's next lease, maybe in another
        process, come after them. Gives up after `timeout` seconds without the buffer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        with self._lock:
            known = self._trees.get(tree)
            upto = known.sent + len(known.flying) + len(known.waiting) if known is not None else 0
        while known is not None and known.sent < upto and not self._closing and (left := until - loop.time()) > 0:
            flushed = loop.create_future()
            with self._lock:
                self._watchers.append((loop, flushed))
            self._hurry.set()
            await asyncio.wait([flushed], timeout=left)

    def close(self, timeout: float = 5.0) -> None:
        """Flush the waiting frames and stop the thread."""
        self._closing = True
        self._hurry.set()
        self._dirty.set()
        self._thread.join(timeout)

    def archive(self) -> None:
        """After `close`, on a thread with a connection: archive the ended trees."""
        if not self._thread.is_alive():
            self._archive()

    @property
    def has_ended(self) -> bool:
        """Whether there is a tree to archive."""
        return bool(self._ended)

    def _serve(self) -> None:
        limit_waits()
        pause = FLUSH_S
        while True:
            self._dirty.wait(ARCHIVE_S if self._ended else None)
            self._dirty.clear()
            closing = self._closing
            begun = time.monotonic()
            try:
                self.flush()
                if not closing and time.monotonic() - self._archived_at >= ARCHIVE_S:
                    self._archive()
                pause = max(FLUSH_S, min(2 * (time.monotonic() - begun), MAX_PAUSE_S))
            except Exception as error:
                log.warning("the event buffer failed: %s", error, extra={"action": "publish.failed"})
                pause = MAX_PAUSE_S
                self._dirty.set()
            self._notify_flushed()
            if closing:
                break
            self._hurry.wait(pause)
            self._hurry.clear()
        connections.close_all()

    def _notify_flushed(self) -> None:
        with self._lock:
            watchers, self._watchers = self._watchers, []
        for loop in {loop for loop, _ in watchers}:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_set, [flushed for watcher_loop, flushed in watchers if watcher_loop is loop])

    def flush(self) -> None:
        """Send all queued frames, all trees in one round trip. Frames that could not be sent are queued again."""
        with self._lock:
            trees = {key: tree for key, tree in self._trees.items() if tree.waiting}
            for tree in trees.values():
                tree.take_off()
            batches = [tree.batch(key) for key, tree in trees.items()]
        failure: Exception | None = None
        try:
            outcomes = self._buffer.append(batches) if batches else []
            for batch, outcome in zip(batches, outcomes, strict=True):
                try:
                    self._settle(trees[batch.tree], batch, outcome)
                except BufferLocked:
                    self._dirty.set()
                except Exception as error:  # the other trees continue
                    failure = error
        finally:
            with self._lock:
                for tree in trees.values():
                    tree.turn_back()  # those that were not sent
        if failure is not None:
            raise failure

    def _archive(self) -> None:
        """Archive the trees that have ended since the last time, together: one by one they would cost as much as their
        runs."""
        ended, self._ended = self._ended, {}
        self._archived_at = time.monotonic()
        try:
            with_retry(republish.archive, self._buffer, ended)
        except Exception as error:  # the sweep repeats it
            log.warning("%d streams not archived: %s", len(ended), error, extra={"action": "publish.archive"})

    def _settle(self, tree: _Tree, batch: Batch, outcome: list[int] | Exception) -> None:
        if isinstance(outcome, MarkReached | Lost):
            return self._settle(tree, batch, self._number_on(batch, is_lost=isinstance(outcome, Lost)))
        if isinstance(outcome, Exception):
            raise outcome
        with self._lock:
            tree.land(outcome)
        tree.fresh = False
        tree.mark = batch.mark
        if tree.cut:
            frames = durable_frames(batch.tree)[1]
            with self._lock:
                tree.waiting, tree.cut = frames + tree.waiting, False
            self._dirty.set()
        if batch.frames[-1].type == "stream.done" and outcome[-1] >= 0:
            with self._lock:
                self._trees.pop(batch.tree, None)
            self._ended[batch.tree] = batch.frames[-1].source.epoch
        return None

    def _number_on(self, batch: Batch, *, is_lost: bool) -> list[int] | Exception:
        """Reserve more numbers and append again. Drop the frames of a deleted tree, and of a lost tree that has ended
        and is archived."""
        dropped = [-1] * len(batch.frames)
        reserved = len(batch.frames) + RESERVE
        root = with_retry(republish.reserve_events, batch.tree, reserved, skip_locked=True)
        if root is None:
            return BufferLocked() if Run.objects.filter(id=batch.tree).exists() else dropped
        if is_lost and root.is_terminal and root.published_at is not None:
            return dropped
        batch.mark = root.event_mark
        if is_lost:
            log.warning("events of %s were lost, numbering on", batch.tree, extra={"action": "publish.gap"})
            return restart(self._buffer, batch, root.event_mark - reserved)
        return self._buffer.append([batch])[0]


def _set(futures: list[asyncio.Future[None]]) -> None:
    """All at once: asks of one turn that have waited for this are written together."""
    for flushed in futures:
        if not flushed.done():
            flushed.set_result(None)
