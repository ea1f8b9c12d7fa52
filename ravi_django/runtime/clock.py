"""The one clock of stored times: the database's, or a fake one in tests (`ravi_django.testing.FakeClock`)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db.models import DateTimeField, ExpressionWrapper, Value
from django.db.models.functions import Now


class Clock(Protocol):
    def fixed(self) -> datetime | None:
        """The present of a fake clock; None asks the database."""
        ...


class DatabaseClock:
    def fixed(self) -> datetime | None:
        return None


_current: Clock = DatabaseClock()


def use(clock: Clock) -> Clock:
    """Install a clock for this process; returns the one before."""
    global _current
    before, _current = _current, clock
    return before


def fixed() -> datetime | None:
    return _current.fixed()


def now() -> Any:
    """The present as an ORM expression."""
    present = _current.fixed()
    return Now() if present is None else Value(present, output_field=DateTimeField())


def after(seconds: float) -> Any:
    """`seconds` from now (negative: ago) as an ORM expression."""
    present = _current.fixed()
    if present is not None:
        return Value(present + timedelta(seconds=seconds), output_field=DateTimeField())
    return ExpressionWrapper(Now() + Value(timedelta(seconds=seconds)), output_field=DateTimeField())
