"""Time the calls of tools, without the time that they wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar


class Stopwatch:
    """Times a call. `waited` is the time that it waited for people, children, inner calls or a free thread."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._waits = 0  # that have not ended
        self._since = 0.0
        self.waited = 0.0

    @contextmanager
    def excluded(self) -> Iterator[None]:
        if not self._waits:
            self._since = time.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self.waited += time.monotonic() - self._since

    def carry(self, seconds: float) -> None:
        """Add time of an earlier lease."""
        self._begun -= seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun


_watch: ContextVar[Stopwatch | None] = ContextVar("ravi_stopwatch", default=None)  # of the call around this code


def own_time() -> float:
    """Seconds that the call around this code has taken, without waiting."""
    watch = _watch.get()
    return 0.0 if watch is None else watch.elapsed - watch.waited


def carry(seconds: float) -> None:
    """Add time that the call around this code took in an earlier lease."""
    if (watch := _watch.get()) is not None:
        watch.carry(seconds)


@contextmanager
def watched() -> Iterator[Stopwatch]:
    """Time a call; for an outer call this is waiting."""
    with waiting():
        watch = Stopwatch()
        token = _watch.set(watch)
        try:
            yield watch
        finally:
            _watch.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """Around time that the call around this code waits."""
    watch = _watch.get()
    with nullcontext() if watch is None else watch.excluded():
        yield
