"""The rows of schedules and of their handled ticks.

The scheduler that advances a schedule submits the runs of the passed ticks in the same transaction. The guard is a
compare-and-set on `next_at`, and a unique constraint on (schedule, tick). SKIP LOCKED only keeps concurrent schedulers
from waiting for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce, Greatest

from ravi_django.db import connection, transaction
from ravi_django.models import Schedule, ScheduleTick
from ravi_django.runtime.db import clock

ROWS = 5_000  # changed by one statement, at most
Due = tuple[datetime, UUID, datetime]  # when a schedule was due, its id, the present time


def due(limit: int, behind: Due | None = None) -> list[Due]:
    """The due schedules, the longest overdue first, starting after `behind`. A partial index on enabled rows serves
    this query."""
    rows = _due()
    if behind is not None:
        at, last, _ = behind
        rows = rows.filter(Q(due_at__gt=at) | Q(id__gt=last), due_at__gte=at)
    found: QuerySet[Any, Any] = rows.annotate(present=clock.now()).order_by("due_at", "id")
    return list(found.values_list("due_at", "id", "present")[:limit])


def read_due(schedule_id: UUID) -> tuple[Schedule, datetime] | None:
    """The locked schedule with its owner and session, and the present time. None when another scheduler has locked it,
    or it is not due any more."""
    rows = _due().filter(id=schedule_id).annotate(present=clock.now())
    row = _lock_unlocked(rows).select_related("owner", "session").first()
    return None if row is None else (row, vars(row)["present"])


def _due() -> QuerySet[Schedule]:
    return Schedule.objects.filter(enabled=True, due_at__lte=clock.now())


def advance(row: Schedule, next_at: datetime | None, due_at: datetime | None, last_at: datetime) -> bool:
    """Move the schedule to its next tick. False when it has changed since it was read, or is disabled."""
    rows = Schedule.objects.filter(id=row.id, next_at=row.next_at, enabled=True)
    return bool(rows.update(next_at=next_at, due_at=due_at, seen_at=None, last_at=last_at))


def postpone(row: Schedule, error: str, seconds: float, seen_at: datetime) -> None:
    """Try the schedule again after `seconds`, here or on another host: its rule is invalid on this one."""
    rows = Schedule.objects.filter(id=row.id, next_at=row.next_at, enabled=True)
    rows.update(due_at=clock.after(seconds), seen_at=Coalesce("seen_at", Value(seen_at)), error=error)


def mark_seen(begun: datetime) -> None:
    """Mark the remaining due schedules as seen by a sweep, so that their wait for the next sweep is not counted as
    downtime. Skips rows that are locked where the database supports it; elsewhere all lock in one order."""
    can_tell = connection.features.has_select_for_update_skip_locked
    while True:
        with transaction.atomic():
            rows = _due().filter(seen_at=None)
            found = _lock_unlocked(rows.order_by("due_at")) if can_tell else rows.order_by("id").select_for_update()
            ids = list(found.values_list("id", flat=True)[:ROWS])
            Schedule.objects.filter(id__in=ids).update(seen_at=Greatest("due_at", Value(begun)))
        if len(ids) < ROWS:
            break


def _lock_unlocked(rows: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Lock the rows and skip those that others have locked."""
    if not connection.features.has_select_for_update_skip_locked:
        return rows
    return rows.select_for_update(skip_locked=True, of=("self",), no_key=True)


def recorded(row: Schedule, ticks: Sequence[datetime]) -> set[datetime]:
    """Which of these ticks are recorded already."""
    return set(ScheduleTick.objects.filter(schedule=row, at__in=ticks).order_by().values_list("at", flat=True))


def record(row: Schedule, ticks: Sequence[ScheduleTick]) -> None:
    """Write the ticks; the last one's error becomes the schedule's. Raises IntegrityError when one is recorded."""
    present = clock.fixed()
    for tick in ticks:
        if present is not None:
            tick.created_at = present
    ScheduleTick.objects.bulk_create(ticks)
    if ticks and ticks[-1].error != row.error:
        Schedule.objects.filter(id=row.id).update(error=ticks[-1].error)


def old_ticks(older_than_s: float) -> QuerySet[ScheduleTick]:
    return ScheduleTick.objects.filter(created_at__lt=clock.after(-older_than_s))
