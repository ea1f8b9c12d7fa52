"""Whose turn it is: one request at a time to one server, a gap between two, and so many in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Queue:
    """Of one server."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.free_at = 0.0  # by the loop's clock
        self.users = 0


class Turns:
    """Who waits for its server takes no place from others."""

    def __init__(self, at_once: int, gap_s: float) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._gap_s = gap_s
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def of(self, server: str) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(server, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                await asyncio.sleep(max(0.0, queue.free_at - loop.time()))
                try:
                    async with self._room:
                        yield
                finally:
                    queue.free_at = loop.time() + self._gap_s
        finally:
            queue.users -= 1
            if not queue.users:
                self._forget(loop.time())

    def _forget(self, now: float) -> None:
        """Servers that nobody asks, when there are many of them."""
        if len(self._queues) > 1000:
            idle = [name for name, queue in self._queues.items() if not queue.users and queue.free_at < now]
            for name in idle:
                del self._queues[name]
