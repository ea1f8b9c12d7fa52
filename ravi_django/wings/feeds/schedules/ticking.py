"""Submit the runs of due schedules: one run for each tick, also when several processes sweep at the same time.

A schedule is handled in one transaction: a compare-and-set advances it, its runs are submitted, its ticks recorded. A
scheduler that dies in between leaves the schedule unchanged. The sweep also finds runs that were committed and not
hinted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce, Greatest

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.lease.claims import skip_locked
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.errors import message_of
from ravi_django.models import Run, Schedule, ScheduleTick
from ravi_django.runs.catalog import specs
from ravi_django.runs.lifecycle.prune import delete_old
from ravi_django.wings.feeds.schedules.schedules import submit_for, timetable
from ravi_django.wings.feeds.schedules.timetable import MOMENT, Timetable

log = logging.getLogger("ravi.schedules")

BATCH = 500  # schedules that are looked up at once
LIMIT = 10_000  # runs that one sweep submits
WITHIN_S = 10.0  # about the longest time that one sweep takes for them; the rest waits for the next sweep
RETRY_S = 120.0  # until a schedule with an invalid rule is tried again: another host may know its time zone
PER_SCHEDULE = 100  # runs of one schedule in one sweep
MOST = 1_000  # past ticks that get a run, or are counted as missed
COUNTED = 10_000  # the count of skipped ticks stops here
ERROR = 1_000  # characters of a stored error


def grace_s() -> float:
    """Seconds after which a tick counts as missed, when `catch_up` is "skip"."""
    return 2.0 * float(conf.SWEEP_S) + WITHIN_S


def tick(limit: int = LIMIT, within_s: float = WITHIN_S) -> list[UUID]:
    """Handle the due schedules until about `limit` runs are submitted or `within_s` seconds have passed. Returns the
    runs to hint.

    A schedule that fails is left to the next sweep and does not stop the others. Schedules that wait for the next sweep
    are marked as seen.
    """
    ends, left, is_all = time.monotonic() + within_s, limit, True
    hinted: list[UUID] = []
    seen: set[UUID] = set()
    agents: Agents = {}
    begun, page = None, due(min(BATCH, limit))
    while page:
        begun = begun or page[0][2]
        for _, schedule_id, _ in page:
            if left <= 0 or time.monotonic() >= ends:
                mark_seen(begun)
                return hinted
            if schedule_id in seen:  # it has more ticks to catch up with, in the next sweep
                continue
            seen.add(schedule_id)
            try:
                taken = handle(schedule_id, left, begun, agents)
            except Exception as error:
                is_all = False
                log.warning("schedule %s: left to the next sweep: %s", schedule_id, error, extra=_FAILED)
                continue
            hinted += [run.id for run in taken if run.status == "pending"]
            left -= max(len(taken), 1)
        page = due(BATCH, page[-1]) if len(page) >= min(BATCH, limit) else []
    if not is_all and begun is not None:
        mark_seen(begun)
    return hinted


_FAILED = {"action": "tick.failed"}
Agents = dict[str, specs.RunnableAgent]


def handle(schedule_id: UUID, room: int, begun: datetime, agents: Agents) -> list[Run]:
    """Submit the due ticks of one schedule, at most `room` runs. The sweep has `begun` then. Returns the new runs."""
    with transaction.atomic():
        due_row = read_due(schedule_id)
        return [] if due_row is None else handle_row(*due_row, room, begun, agents)


def handle_row(row: Schedule, present: datetime, room: int, begun: datetime, agents: Agents) -> list[Run]:
    """The same for a row that was read before, in the caller's transaction. Does nothing when the row has changed."""
    seen_at = min(row.seen_at or present, begun)
    try:
        times = timetable(row)
        part = _choose(row, times, present, min(room, PER_SCHEDULE), seen_at)
    except InvalidInputError as error:
        log.warning("schedule %s: %s", row.id, error, extra={"action": "tick.put_off"})
        postpone(row, message_of(error)[:ERROR], RETRY_S, seen_at)
        return []
    due_at = None if part.following is None else times.due(part.following)
    if not advance(row, part.following, due_at, part.last):
        return []
    before = recorded(row, [*part.ticks, *(tick.at for tick in part.skipped)])
    made = [_submit(row, at, part.missed, agents) for at in part.ticks if at not in before]
    record(row, [*(tick for tick in part.skipped if tick.at not in before), *(done for done, _ in made)])
    return [run for _, run in made if run is not None]


@dataclass(frozen=True, slots=True)
class Part:
    """The due ticks that are handled now."""

    ticks: Sequence[datetime]  # get a run each
    missed: int  # earlier ticks that the one run also covers
    last: datetime  # the last of the handled ticks
    following: datetime | None  # the next tick
    skipped: Sequence[ScheduleTick] = ()  # at most one row, for all ticks without a run


def _choose(row: Schedule, times: Timetable, present: datetime, room: int, seen_at: datetime) -> Part:
    first = row.next_at or row.due_at or present
    due = times.due_by(first, present, MOST)
    if not due:  # the jitter was raised directly in the database
        return Part((), 0, row.last_at or first, first)
    if row.catch_up == Schedule.CatchUp.ALL:
        ticks, rest = due[:room], due[room:]
        skipped = _skipped(row, times, first, due[0], f"they were more than {MOST}")
        return Part(ticks, 0, ticks[-1], rest[0] if rest else times.after(ticks[-1]), skipped)
    following = times.after(due[-1])
    if row.catch_up == Schedule.CatchUp.ONE:
        return Part(due[-1:], len(due) - 1, due[-1], following)
    oldest = seen_at - timedelta(seconds=grace_s())
    ticks = [at for at in due[-room:] if times.due(at) >= oldest]
    skipped = _skipped(row, times, first, ticks[0] if ticks else due[-1] + MOMENT, "they were missed")
    return Part(ticks, 0, due[-1], following, skipped)


def _skipped(row: Schedule, times: Timetable, first: datetime, end: datetime, why: str) -> Sequence[ScheduleTick]:
    """The row that reports the ticks from `first` up to `end`, which get no run."""
    if not (count := times.count(first, end, COUNTED)):
        return ()
    number = f"{count:,} ticks" if count > 1 else "one tick"
    message = f"skipped: {number}{' or more' if count == COUNTED else ''} before {end:%Y-%m-%d %H:%M:%S} UTC: {why}"
    log.warning("schedule %s, %s: %s", row.id, first, message, extra={"action": "tick.skipped"})
    return [ScheduleTick(schedule=row, at=first, error=message)]


def _not_yet(run_id: UUID | str) -> None:
    """No dispatch for each run: the caller of `tick` hints all of them at once."""


def _submit(row: Schedule, at: datetime, missed: int, agents: Agents) -> tuple[ScheduleTick, Run | None]:
    done = ScheduleTick(schedule=row, at=at)
    try:
        with transaction.atomic():  # a savepoint: a refused run does not abort the others
            done.run, is_new = submit_for(row, tick=at, missed=missed, send=_not_yet, agents=agents)
            return done, done.run if is_new else None
    except (OperationalError, InterfaceError):  # a failure of the database, not of the schedule: the next sweep retries
        raise
    except Exception as error:
        log.warning("schedule %s, %s: no run: %s", row.id, at, message_of(error), extra={"action": "tick.refused"})
        done.error = f"{type(error).__name__}: {message_of(error)}"[:ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}")
        return done, None


ROWS = 5_000  # changed by one statement, at most
Due = tuple[datetime, UUID, datetime]  # when a schedule was due, its id, the present time


def due(limit: int, behind: Due | None = None) -> list[Due]:
    """The due schedules, the longest overdue first, starting after `behind`. A partial index on enabled rows serves
    this query."""
    rows = _due()
    if behind is not None:
        at, last, _ = behind
        rows = rows.filter(Q(due_at__gt=at) | Q(id__gt=last), due_at__gte=at)
    ordered: QuerySet[Any, Any] = rows.annotate(present=clock.now()).order_by("due_at", "id")
    return list(ordered.values_list("due_at", "id", "present")[:limit])


def read_due(schedule_id: UUID) -> tuple[Schedule, datetime] | None:
    """The locked schedule with its owner and session, and the present time. None when another scheduler has locked it,
    or it is not due any more."""
    rows = _due().filter(id=schedule_id).annotate(present=clock.now())
    row = skip_locked(rows).select_related("owner", "session").first()
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
    downtime. Skips locked rows."""
    while True:
        with transaction.atomic():
            rows = skip_locked(_due().filter(seen_at=None).order_by("due_at"))
            ids = list(rows.values_list("id", flat=True)[:ROWS])
            Schedule.objects.filter(id__in=ids).update(seen_at=Greatest("due_at", Value(begun)))
        if len(ids) < ROWS:
            break


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


def prune(older_than_s: float, dry_run: bool) -> int:
    return delete_old(ScheduleTick.objects.filter(created_at__lt=clock.after(-older_than_s)), dry_run)
