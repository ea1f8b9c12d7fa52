"""The bytes that the requests and model calls of this process hold at once: RAVI["PROCESS_BYTES"]."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager

from ravi_django.conf import conf


class BytesBudget:
    """At most `limit` bytes at once, for all threads and event loops. An amount is returned as a whole."""

    def __init__(self, limit: int | Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        return self._limit if isinstance(self._limit, int) else self._limit()

    @property
    def is_full(self) -> bool:
        """Whether a call waits for bytes, or none are left."""
        return bool(self._waiting) or self._taken >= self.limit

    def try_take(self, wanted: int) -> bool:
        """Take the bytes if there is room now. Does not queue behind the calls that wait."""
        with self._lock:
            has_room = self._taken + wanted <= self.limit
            self._taken += wanted if has_room else 0
            return has_room

    def give_back(self, taken: int) -> None:
        with self._lock:
            self._taken -= taken
            while self._waiting:
                wanted, granted = self._waiting[0]
                if not granted.cancelled() and not self._has_room(wanted):
                    return
                self._waiting.popleft()
                if granted.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                    self._taken += wanted
                    granted.set_result(None)

    @asynccontextmanager
    async def holding(self, wanted: int) -> AsyncIterator[None]:
        """Take all the bytes at once, first come, first served, and give them back at the end of the block. More than
        the limit waits until nothing else is taken."""
        with self._lock:
            granted: Future[None] | None = None
            if self._waiting or not self._has_room(wanted):
                granted = Future()
                self._waiting.append((wanted, granted))
            else:
                self._taken += wanted
        if granted is not None:
            try:
                await asyncio.wrap_future(granted)
            except BaseException:
                self.give_back(0 if granted.cancel() else wanted)  # it may be granted already
                raise
        try:
            yield
        finally:
            self.give_back(wanted)

    def _has_room(self, wanted: int) -> bool:
        return not self._taken or self._taken + wanted <= self.limit


process_bytes = BytesBudget(lambda: int(conf.PROCESS_BYTES))
