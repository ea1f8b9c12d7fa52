"""An event loop that somebody else moves, one step at a time, on a clock that somebody else moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.world import DatabaseThreads, ToolThreads


class SimLoop(asyncio.SelectorEventLoop):
    _ready: Any
    _scheduled: Any

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now

    def set_clock(self, now: Callable[[], float]) -> None:
        self._now = now

    def time(self) -> float:
        return self._now()

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)  # there is one thread

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    @property
    def next_timer(self) -> float | None:
        return min((timer.when() for timer in self._scheduled if not timer.cancelled()), default=None)

    def settle(self) -> None:
        """Run what can run now, and what comes of that, until all of it waits."""
        while self._ready or ((due := self.next_timer) is not None and due <= self.time()):
            self.call_soon(self.stop)
            self.run_forever()


class Queued(DatabaseThreads):
    """Calls wait in `queue` until somebody performs them."""

    def __init__(self, queue: list[Any]) -> None:
        super().__init__(1)
        self._queue = queue

    def _give(self, call: Any) -> None:
        self._queue.append(call)


class QueuedTools(ToolThreads):
    def __init__(self, queue: list[Any]) -> None:
        super().__init__(1)
        self._queue = queue

    def _give(self, job: Any) -> None:
        self._queue.append(job)
