"""The sweep's part in schedules: what is due is submitted, once for each tick, however many sweep at the same time.

A schedule is seen to in one transaction: it moves on by compare-and-set, its runs are submitted, its ticks recorded. A
scheduler that dies in between leaves the schedule as it was. A run that was committed and not hinted is found by the
sweep, as any.
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
from ravi_django.models import Run, Schedule, ScheduleTick
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.schedules import rows as schedule_rows
from ravi_django.runtime.schedules.schedules import submit_for, timetable
from ravi_django.runtime.schedules.timetable import MOMENT, Timetable

log = logging.getLogger("ravi.schedules")

BATCH = 500  # schedules that are looked up at once
LIMIT = 10_000  # runs that one sweep submits
WITHIN_S = 10.0  # what one sweep may take for them, about: the others wait for the next, and lose nothing by it
RETRY_S = 120.0  # after which a schedule is tried again whose rule was not understood: another host may know its zone
PER_SCHEDULE = 100  # of one schedule, which catches up with all of its ticks: the others come with the next sweeps
MOST = 1_000  # ticks that are made up for, and counted as missed
COUNTED = 10_000  # ticks that got no run, as far as they are counted
ERROR = 1_000  # characters that are kept of one


def grace_s() -> float:
    """Seconds after which a tick counts as missed, where missed ones are skipped."""
    return 2.0 * float(conf.SWEEP_S) + WITHIN_S


def tick(limit: int = LIMIT, within_s: float = WITHIN_S) -> list[UUID]:
    """See to the schedules that are due, until about `limit` runs are submitted or so many seconds have passed.
    Returns those to be hinted.

    One that fails is left to the next sweep, and never stops the others. What waits for the next sweep is marked as
    seen. An agent is looked up once.
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
                schedule_rows.leave(begun)
                return hinted
            if schedule_id in seen:  # it catches up, a part a sweep
                continue
            seen.add(schedule_id)
            try:
                taken = see_to(schedule_id, left, begun, agents)
            except Exception as error:
                is_all = False
                log.warning("schedule %s: left to the next sweep: %s", schedule_id, error, extra=_FAILED)
                continue
            hinted += [run.id for run in taken if run.status == "pending"]
            left -= max(len(taken), 1)
        page = schedule_rows.due(BATCH, page[-1]) if len(page) >= min(BATCH, limit) else []
    if not is_all and begun is not None:
        schedule_rows.leave(begun)
    return hinted


_FAILED = {"action": "tick.failed"}
Agents = dict[str, specs.Found]


def see_to(
    schedule_id: UUID, room: int = PER_SCHEDULE, begun: datetime | None = None, agents: Agents | None = None
) -> list[Run]:
    """Submit what has come of one schedule, at most `room` runs, in a sweep that has `begun`. Returns the new runs."""
    with transaction.atomic():
        found = schedule_rows.read_due(schedule_id)
        return [] if found is None else take(*found, room, begun, agents)


def take(
    row: Schedule,
    present: datetime,
    room: int = PER_SCHEDULE,
    begun: datetime | None = None,
    agents: Agents | None = None,
) -> list[Run]:
    """The same for a row as it was read, in the caller's transaction: nothing when it has moved on since."""
    seen_at = min(row.seen_at or present, begun or present)
    try:
        times = timetable(row)
        part = _choose(row, times, present, min(room, PER_SCHEDULE), seen_at)
    except InvalidInputError as error:
        log.warning("schedule %s: %s", row.id, error, extra={"action": "tick.put_off"})
        schedule_rows.put_off(row, str(error)[:ERROR], RETRY_S, seen_at)
        return []
    due_at = None if part.following is None else times.due(part.following)
    if not schedule_rows.advance(row, part.following, due_at, part.last):
        return []
    before = schedule_rows.seen(row, [*part.ticks, *(tick.at for tick in part.skipped)])
    made = [_submit(row, at, part.missed, agents) for at in part.ticks if at not in before]
    schedule_rows.record(row, [*(tick for tick in part.skipped if tick.at not in before), *(done for done, _ in made)])
    return [run for _, run in made if run is not None]


@dataclass(frozen=True, slots=True)
class Part:
    """What is done about the ticks that have come."""

    ticks: Sequence[datetime]  # those that get a run
    missed: int  # ticks that the one run stands for beside its own
    last: datetime  # the last that is seen to with these
    following: datetime | None  # the next to come
    skipped: Sequence[ScheduleTick] = ()  # at most one, which tells of all that get no run


def _choose(row: Schedule, times: Timetable, present: datetime, room: int, seen_at: datetime) -> Part:
    first = row.next_at or row.due_at or present
    come = times.come(first, present, MOST)
    if not come:  # its jitter was made longer behind our back
        return Part((), 0, row.last_at or first, first)
    if row.catch_up == Schedule.CatchUp.ALL:
        ticks, rest = come[:room], come[room:]
        skipped = _skipped(row, times, first, come[0], f"they were more than {MOST}")
        return Part(ticks, 0, ticks[-1], rest[0] if rest else times.after(ticks[-1]), skipped)
    following = times.after(come[-1])
    if row.catch_up == Schedule.CatchUp.ONE:
        return Part(come[-1:], len(come) - 1, come[-1], following)
    oldest = seen_at - timedelta(seconds=grace_s())
    ticks = [at for at in come[-room:] if times.due(at) >= oldest]
    skipped = _skipped(row, times, first, ticks[0] if ticks else come[-1] + MOMENT, "they were missed")
    return Part(ticks, 0, come[-1], following, skipped)


def _skipped(row: Schedule, times: Timetable, first: datetime, end: datetime, why: str) -> Sequence[ScheduleTick]:
    """What tells an operator of the ticks from `first` up to `end`, which get no run."""
    if not (count := times.count(first, end, COUNTED)):
        return ()
    number = f"{count:,} ticks" if count > 1 else "one tick"
    words = f"skipped: {number}{' or more' if count == COUNTED else ''} before {end:%Y-%m-%d %H:%M:%S} UTC: {why}"
    log.warning("schedule %s, %s: %s", row.id, first, words, extra={"action": "tick.skipped"})
    return [ScheduleTick(schedule=row, at=first, error=words)]


def _not_yet(run_id: UUID | str) -> None:
    """Whoever called `tick` hints its runs, all at once."""


def _submit(row: Schedule, at: datetime, missed: int, agents: Agents | None) -> tuple[ScheduleTick, Run | None]:
    done = ScheduleTick(schedule=row, at=at)
    try:
        with transaction.atomic():  # what is refused spoils nothing of the others
            done.run, is_new = submit_for(row, tick=at, missed=missed, send=_not_yet, agents=agents)
            return done, done.run if is_new else None
    except (OperationalError, InterfaceError):  # the database's trouble, not the schedule's: another sweep does it
        raise
    except Exception as error:
        log.warning("schedule %s, %s: no run: %s", row.id, at, error, extra={"action": "tick.refused"})
        done.error = f"{type(error).__name__}: {error}"[:ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}")
        return done, None
