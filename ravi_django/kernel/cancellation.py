"""Cooperative cancellation: one token a run, with linked tokens below it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ravi_django.kernel.errors import CancellationError


class CancellationToken:
    """Poll it with `check()`, await it with `wait()`; it cascades to children. Safe to cancel from any thread.

    `deadline` is in seconds of `clock` (monotonic by default); a passed deadline reads as cancelled.
    """

    def __init__(self, *, deadline: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadline = deadline
        self._clock = clock
        self._reason: str | None = None
        self._children: list[CancellationToken] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def reason(self) -> str | None:
        """Why it was cancelled; None before that."""
        if self._reason is None and self.deadline is not None and self._clock() >= self.deadline:
            self.cancel("deadline passed")
        return self._reason

    @property
    def cancelled(self) -> bool:
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel; the first reason stays."""
        if self._reason is not None:
            return
        self._reason = reason
        for loop, waiter in self._waiters:
            loop.call_soon_threadsafe(_wake, waiter)
        self._waiters.clear()
        for child in self._children:
            child.cancel(reason)

    def check(self) -> None:
        """Raise CancellationError when cancelled or past the deadline."""
        if (reason := self.reason) is not None:
            raise CancellationError(reason)

    async def wait(self) -> None:
        """Return once the token is cancelled or its deadline has passed."""
        if self.cancelled:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        entry = (loop, waiter)
        self._waiters.append(entry)
        try:
            remaining = None if self.deadline is None else max(0.0, self.deadline - self._clock())
            await asyncio.wait([waiter], timeout=remaining)
            _ = self.reason  # a passed deadline cancels
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)

    def child(self, *, deadline: float | None = None) -> CancellationToken:
        """A linked token: cancelled with this one, and by its own deadline if that is earlier."""
        limits = [limit for limit in (self.deadline, deadline) if limit is not None]
        token = CancellationToken(deadline=min(limits, default=None), clock=self._clock)
        self._children.append(token)
        if self._reason is not None:
            token.cancel(self._reason)
        return token


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
