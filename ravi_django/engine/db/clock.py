"""The clock of stored times: the database's, or a fake one in tests (`ravi_django.testing.FakeClock`)."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any, Protocol

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.formats import get_format

from ravi_django.db import connection


class Clock(Protocol):
    def fixed(self) -> datetime: ...


_current: Clock | None = None


def use(clock: Clock | None) -> Clock | None:
    """Install a fake clock for this process, or with None the database's; returns the one before."""
    global _current
    before, _current = _current, clock
    return before


def fixed() -> datetime | None:
    """The present of the fake clock; None with the database's."""
    return None if _current is None else _current.fixed()


def now() -> Any:
    """The present as an ORM expression."""
    present = fixed()
    return Now() if present is None else Value(present, output_field=DateTimeField())


def after(seconds: float) -> Any:
    """`seconds` from now (negative: ago) as an ORM expression."""
    present = fixed()
    if present is not None:
        return Value(present + timedelta(seconds=seconds), output_field=DateTimeField())
    return ExpressionWrapper(Now() + Value(timedelta(seconds=seconds)), output_field=DateTimeField())


def age(column: str) -> Any:
    """The time since the column's value, as an ORM expression."""
    return ExpressionWrapper(now() - F(column), output_field=DurationField())


def stamp(row: Any) -> Any:
    """Set those times of a new row that are not the database's default."""
    if (present := fixed()) is not None:
        row.created_at = present
    return row


def written(at: datetime, zone: tzinfo | None = None) -> str:
    """A time as text: in `zone` or the site's zone, to the second, in the format of the language's forms."""
    return timezone.localtime(at, zone).strftime(get_format("DATETIME_INPUT_FORMATS")[0])


def present() -> datetime:
    if (moment := fixed()) is not None:
        return moment
    if connection.vendor != "postgresql":
        return timezone.now()  # SQLite runs in this process
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        statement_time: datetime = cursor.fetchone()[0]
        return statement_time
