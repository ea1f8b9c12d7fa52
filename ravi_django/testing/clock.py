"""A fake clock for leases, timers, deadlines and retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from ravi_django.engine.db import clock
from ravi_django.kernel.checks import seconds_of


class FakeClock:
    """Inside the `with` block, all stored times and comparisons of this process use this clock.

    with FakeClock() as clock:
        ...
        clock.advance(31)  # seconds: a lease of 30 s has expired
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.now = start or datetime(2030, 1, 1, tzinfo=UTC)
        self._before: clock.Clock | None = None

    def fixed(self) -> datetime:
        """The present time of this clock."""
        return self.now

    def advance(self, seconds: float | timedelta) -> datetime:
        """Move the clock forward; returns the new time."""
        self.now += timedelta(seconds=seconds_of(seconds))
        return self.now

    def __enter__(self) -> Self:
        self._before = clock.use(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock.use(self._before)
