"""The one clock of stored times: the database's, or a fake one in tests (`ravi_django.testing.FakeClock`); and how
people read a time."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any, Protocol

from django.db.models import DateTimeField, ExpressionWrapper, Value
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.formats import get_format

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.models import Run


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


def stamp(row: Any) -> Any:
    """The times of a new row that is not the database's default."""
    if (present := fixed()) is not None:
        row.created_at = present
    if isinstance(row, Run):
        row.claim_at = after(-row.priority * conf.PRIORITY_HEAD_START_S)
    return row


def written(at: datetime, zone: tzinfo | None = None) -> str:
    """In this zone, else the site's, to the second, in the format of the language's forms."""
    return timezone.localtime(at, zone).strftime(get_format("DATETIME_INPUT_FORMATS")[0])


def present() -> datetime:
    if (moment := fixed()) is not None:
        return moment
    if connection.vendor != "postgresql":
        return timezone.now()  # SQLite runs in this process
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: datetime = cursor.fetchone()[0]
        return found
