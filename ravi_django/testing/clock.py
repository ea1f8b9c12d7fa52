"""A clock that moves when a test says so: for leases, timers, deadlines and retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from ravi_django.runtime.db import clock


class FakeClock:
    """While it is entered, it is the present of every stored time and comparison of this process.

    with FakeClock() as clock:
        ...
        clock.advance(31)  # seconds: a lease of 30 s has expired
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.now = start or datetime(2030, 1, 1, tzinfo=UTC)
        self._before: clock.Clock | None = None

    def fixed(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        """Move on; returns the new present."""
        self.now += timedelta(seconds=seconds)
        return self.now

    def __enter__(self) -> Self:
        self._before = clock.use(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock.use(self._before)
