"""The threads of sync tools.

A call that is given up (timeout, cancelled run) cannot be stopped: its thread is lost until the tool's code ends. A new
thread takes its place, so tools that hang do not stop the worker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from ravi_django.engine.db.threads import Call, Thread, Threads
from ravi_django.kernel import ToolRefused

log = logging.getLogger("ravi.tools")

LOST_PER_THREAD = 4  # replacements for each thread of the pool, at most


class NoThreadLeft(ToolRefused):
    """All possible threads hang in other calls: a fault of the worker, not of the tool."""

    def __init__(self, lost: int) -> None:
        super().__init__(f"not run: {lost} calls of tools hang in this worker, and there is no thread left")


class ToolThreads(Threads):
    """At most `size` threads that are not lost. The end of the process does not wait for a tool that hangs."""

    def __init__(self, size: int, name: str = "ravi-tool") -> None:
        super().__init__(size, name)
        self._live = 0  # threads that are not lost
        self._lost = 0
        _pools.add(self)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function on a thread and raise its errors. A cancelled caller gives the call up. Raises
        NoThreadLeft."""
        job = Call(partial(function, *args))
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
        """Whether all possible threads hang."""
        return not (self._live or self._has_room)

    def _give(self, call: Call) -> None:
        if self.is_exhausted and not self._closed:
            raise NoThreadLeft(self._lost)
        super()._give(call)

    @property
    def _has_room(self) -> bool:
        return self._live < self._size and self._live + self._lost < self._size * (1 + LOST_PER_THREAD)

    @property
    def _serving(self) -> int:
        return self._live

    def _make(self, call: Call) -> Thread:
        thread = super()._make(call)
        self._live += 1
        return thread

    def _give_up(self, job: Call) -> None:
        with self._lock:
            if job.thread is None:
                job.is_over = True  # the thread that gets it will skip it
                return
            if job.is_over:
                return
            job.is_over = job.thread.is_lost = True
            self._live -= 1
            self._lost += 1
            lost = self._lost
            refused = self._replace()
        for other in refused:
            other.answer(None, NoThreadLeft(lost))
        log.warning(
            "a tool's call was given up and its thread is lost (%s of %s)",
            lost,
            self._size * LOST_PER_THREAD,
            extra={"action": "tool.thread_lost"},
        )

    def _replace(self) -> list[Call]:
        """Start threads for waiting calls. Returns the calls to refuse: all, when no thread lives and none can
        start."""
        with suppress(RuntimeError):  # the system has no thread left
            while self._waiting and self._has_room:
                if not self._waiting[0].is_over:
                    self._make(self._waiting[0])
                self._waiting.popleft()
        if self._live:
            return []
        left, self._waiting = list(self._waiting), deque()
        return left

    def _begin(self, thread: Thread, call: Call) -> bool:
        with self._lock:
            call.thread = thread
            return not call.is_over

    def _after(self, thread: Thread, done: Call) -> Call | None:
        with self._lock:
            done.is_over = True
            if thread.is_lost:
                thread.is_lost = False
                self._lost -= 1
                self._live += 1
            if self._closed or self._live > self._size:  # another thread took its place
                self._live -= 1
                thread.is_ended = True
                return None
            return self._next(thread)

    def close(self) -> None:
        """Take no more calls. Threads end after their present call; does not wait for them."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            waiting, self._waiting = self._waiting, deque()
        for thread in idle:
            thread.calls.put(None)
        for call in waiting:
            call.answer(None, RuntimeError(f"the threads {self._name} are closed"))


_pools: WeakSet[ToolThreads] = WeakSet()  # of this process


def hanging() -> tuple[int, bool]:
    """The number of tool calls that hang in this process, and whether no thread is left because of them."""
    open_pools = [pool for pool in _pools if not pool._closed]
    return sum(pool.lost for pool in open_pools), any(pool.is_exhausted for pool in open_pools)
