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
from uuid import UUID

from django.db import InterfaceError, OperationalError

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.errors import message_of
from ravi_django.models import Run, Schedule, ScheduleTick
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.schedules import rows as schedule_rows
from ravi_django.runtime.schedules.schedules import submit_for, timetable
from ravi_django.runtime.schedules.timetable import MOMENT, Timetable

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
    begun, page = None, schedule_rows.due(min(BATCH, limit))
    while page:
        begun = begun or page[0][2]
        for _, schedule_id, _ in page:
            if left <= 0 or time.monotonic() >= ends:
                schedule_rows.mark_seen(begun)
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
        page = schedule_rows.due(BATCH, page[-1]) if len(page) >= min(BATCH, limit) else []
    if not is_all and begun is not None:
        schedule_rows.mark_seen(begun)
    return hinted


_FAILED = {"action": "tick.failed"}
Agents = dict[str, specs.Found]


def handle(schedule_id: UUID, room: int, begun: datetime, agents: Agents) -> list[Run]:
    """Submit the due ticks of one schedule, at most `room` runs. The sweep has `begun` then. Returns the new runs."""
    with transaction.atomic():
        found = schedule_rows.read_due(schedule_id)
        return [] if found is None else handle_row(*found, room, begun, agents)


def handle_row(row: Schedule, present: datetime, room: int, begun: datetime, agents: Agents) -> list[Run]:
    """The same for a row that was read before, in the caller's transaction. Does nothing when the row has changed."""
    seen_at = min(row.seen_at or present, begun)
    try:
        times = timetable(row)
        part = _choose(row, times, present, min(room, PER_SCHEDULE), seen_at)
    except InvalidInputError as error:
        log.warning("schedule %s: %s", row.id, error, extra={"action": "tick.put_off"})
        schedule_rows.postpone(row, message_of(error)[:ERROR], RETRY_S, seen_at)
        return []
    due_at = None if part.following is None else times.due(part.following)
    if not schedule_rows.advance(row, part.following, due_at, part.last):
        return []
    before = schedule_rows.recorded(row, [*part.ticks, *(tick.at for tick in part.skipped)])
    made = [_submit(row, at, part.missed, agents) for at in part.ticks if at not in before]
    schedule_rows.record(row, [*(tick for tick in part.skipped if tick.at not in before), *(done for done, _ in made)])
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
    words = f"skipped: {number}{' or more' if count == COUNTED else ''} before {end:%Y-%m-%d %H:%M:%S} UTC: {why}"
    log.warning("schedule %s, %s: %s", row.id, first, words, extra={"action": "tick.skipped"})
    return [ScheduleTick(schedule=row, at=first, error=words)]


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
