"""The threads that sync tools run on.

A call that is given up (its time is over, its run is cancelled) cannot be stopped: its thread is lost until the tool's
code comes to an end by itself. Another takes its place, so that tools which hang do not stop the worker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

from ravi_django.kernel import ToolRefused

log = logging.getLogger("ravi.tools")

LOST_PER_THREAD = 4  # replacements for each thread of the pool: beyond, the process is full of code that hangs


class NoThreadLeft(ToolRefused):
    """Every thread that there may be hangs in another call. It is the worker that is ill, not the tool."""

    def __init__(self, lost: int) -> None:
        super().__init__(f"not run: {lost} calls of tools hang in this worker, and there is no thread left")


class ToolThreads:
    """At most `size` threads that somebody waits for, made when needed. They are daemons: the process does not wait for
    a tool that hangs when it ends."""

    def __init__(self, size: int, name: str = "ravi-tool") -> None:
        self._name = name
        self._size = size
        self._made = 0
        self._live = 0  # threads that are not lost
        self._lost = 0
        self._idle: list[_ToolThread] = []
        self._waiting: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._closed = False
        _pools.add(self)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it on a thread; raises what it raises. A cancelled wait leaves the thread to it. Raises
        NoThreadLeft."""
        loop = asyncio.get_running_loop()
        job = _Job(function, args, loop, loop.create_future())
        self._give(job)
        try:
            return await job.future
        finally:
            if not job.future.done() or job.future.cancelled():
                self._give_up(job)

    @property
    def lost(self) -> int:
        """Threads whose call was given up and has not ended."""
        return self._lost

    @property
    def is_exhausted(self) -> bool:
        """Whether every thread that there may be hangs."""
        return not (self._live or self._has_room)

    def _give(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the tool threads are closed")
            if self._idle:
                self._idle.pop().jobs.put(job)
            elif self._live < self._size and self._has_room:
                self._make(job)
            elif not self._live:
                raise NoThreadLeft(self._lost)
            else:
                self._waiting.append(job)

    @property
    def _has_room(self) -> bool:
        return self._live + self._lost < self._size * (1 + LOST_PER_THREAD)

    def _make(self, job: _Job) -> None:
        self._made += 1
        self._live += 1
        _ToolThread(self, f"{self._name}_{self._made}", job)

    def _give_up(self, job: _Job) -> None:
        with self._lock:
            if job.thread is None:
                job.is_over = True  # whoever comes to it passes it over
                return
            if job.is_over:
                return
            job.is_over = job.thread.is_lost = True
            self._live -= 1
            self._lost += 1
            lost = self._lost
            refused = self._replace()
        for other in refused:
            other.settle(None, NoThreadLeft(lost))
        log.warning(
            "a tool's call was given up and its thread is lost (%s of %s)",
            lost,
            self._size * LOST_PER_THREAD,
            extra={"action": "tool.thread_lost"},
        )

    def _replace(self) -> list[_Job]:
        """Start a thread for who waits; where there is no room and no thread lives, nobody waits any longer."""
        while self._waiting and self._live < self._size and self._has_room:
            job = self._waiting.popleft()
            if not job.is_over:
                self._make(job)
        if self._live:
            return []
        left, self._waiting = list(self._waiting), deque()
        return left

    def begin(self, thread: _ToolThread, job: _Job) -> bool:
        """Whether somebody still waits for it."""
        with self._lock:
            job.thread = thread
            return not job.is_over

    def next_for(self, thread: _ToolThread, done: _Job) -> _Job | None:
        """What a thread does next; None ends it or, when `thread.jobs` is asked, lets it wait."""
        with self._lock:
            done.is_over = True
            if thread.is_lost:
                thread.is_lost = False
                self._lost -= 1
                self._live += 1
            if self._closed or self._live > self._size:  # its place was taken
                self._live -= 1
                thread.is_ended = True
                return None
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(thread)
            return None

    def close(self) -> None:
        """Take no more calls; threads end with the one that they are in. Waits for none."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._waiting.clear()
        for thread in idle:
            thread.jobs.put(None)


_pools: WeakSet[ToolThreads] = WeakSet()  # of this process


def hanging() -> tuple[int, bool]:
    """How many calls of tools hang in this process, and whether no thread is left because of them."""
    open_pools = [pool for pool in _pools if not pool._closed]
    return sum(pool.lost for pool in open_pools), any(pool.is_exhausted for pool in open_pools)


class _Job:
    def __init__(
        self, function: Callable[..., Any], args: Any, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]
    ) -> None:
        self.function, self.args, self.loop, self.future = function, args, loop, future
        self.thread: _ToolThread | None = None  # once it runs
        self.is_over = False  # or given up

    def perform(self) -> None:
        value, error = None, None
        try:
            value = self.function(*self.args)
        except BaseException as raised:
            error = raised
        self.settle(value, error)

    def settle(self, value: Any, error: BaseException | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            log.debug("the loop has ended before a tool did")

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration):  # no future takes it
            self.future.set_exception(RuntimeError("StopIteration"))
        else:
            self.future.set_exception(error)


class _ToolThread(threading.Thread):
    def __init__(self, pool: ToolThreads, name: str, first: _Job) -> None:
        super().__init__(name=name, daemon=True)
        self._pool = pool
        self.is_lost = False
        self.is_ended = False
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.jobs.put(first)
        self.start()

    def run(self) -> None:
        job = self.jobs.get()
        while job is not None:
            if self._pool.begin(self, job):
                job.perform()
            following = self._pool.next_for(self, job)
            if self.is_ended:
                return
            del job  # with what it holds: the next may be long in coming
            job = following or self.jobs.get()
