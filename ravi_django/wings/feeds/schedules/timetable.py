"""Compute the ticks of a schedule: pure functions of its rule, its zone and a time. All times are aware; results are in
UTC.

cronsim reads the fields of cron on the wall clock of the zone. Clock changes are handled as in Debian's cron:

- A job with a fixed minute and hour (neither begins with `*`) runs once for each of its times. A skipped time runs at
  the first minute after the gap, a repeated time the first time.
- Any other job (`*/10 * * * *`, `0 * * * *`) follows the clock: nothing in a gap, again in a repeated hour.

A limit of cronsim: a job that follows the clock can lose a tick where the clock jumps by half an hour. Only Lord Howe
Island has such jumps, two a year.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from django.utils import timezone

from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.checks import did_you_mean

MOST_S = 10 * 366 * 24 * 3600  # of an interval, and of a jitter
LENGTH = 200  # characters of a cron expression

MOMENT = timedelta(microseconds=1)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Timetable:
    cron: str  # five fields; empty for an interval
    every_s: int | None  # seconds; None for cron
    zone: tzinfo  # of cron's wall clock
    starts_at: datetime | None  # no tick comes before it; an interval's ticks are counted from it
    jitter_s: int  # the longest delay of a tick, in seconds
    seed: str  # of the jitter: the schedule's id

    def after(self, moment: datetime) -> datetime | None:
        """The first tick after `moment`; None when there is none."""
        moment = moment.astimezone(UTC)
        try:
            if self.every_s is not None:
                return _interval_after(self.starts_at, self.every_s, moment)
            if self.starts_at is not None:
                moment = max(moment, self.starts_at.astimezone(UTC) - MOMENT)
            return _cron_after(self.cron, self.zone, moment)
        except (OverflowError, StopIteration):  # after the year 9999, or no such day in fifty years
            return None

    def ticks(self, moment: datetime) -> Iterator[datetime]:
        """The ticks after `moment`, in order."""
        at = self.after(moment)
        while at is not None:
            yield at
            at = self.after(at)

    def next(self, moment: datetime, count: int) -> list[datetime]:
        return list(islice(self.ticks(moment), count))

    def due(self, tick: datetime) -> datetime:
        """When the tick is handled: up to `jitter_s` later, before the next tick, and the same at each call."""
        if not self.jitter_s:
            return tick
        following = self.after(tick)
        room = float(self.jitter_s)
        if following is not None:
            room = min(room, (following - tick).total_seconds())
        return tick + timedelta(
            seconds=int(room * _share(f"{self.seed}:{tick.astimezone(UTC).isoformat()}") * 1e3) / 1e3
        )

    def due_by(self, first: datetime, moment: datetime, most: int) -> list[datetime]:
        """The latest `most` ticks that are due by `moment`, in order. `first` counts as one even when the rule does not
        give it."""
        if first > moment:
            return []
        span = _HOUR
        while True:
            begin = max(first, moment - span)
            ticks = self._between(begin, moment, most + 1)
            if begin == first:
                ticks = [first, *ticks]
            if len(ticks) > most or begin == first:
                break
            span *= 4
        if self.due(ticks[-1]) > moment:
            ticks.pop()
        return ticks[-most:]

    def count(self, first: datetime, end: datetime, most: int) -> int:
        """The number of ticks from `first`, which is one, up to `end`, which is not counted; at most `most`."""
        if first >= end:
            return 0
        if self.every_s is not None:
            return min(-((first - end) // timedelta(seconds=self.every_s)), most)
        behind = islice(self.ticks(first), most - 1)
        return 1 + sum(1 for _ in takewhile(lambda at: at < end, behind))

    def _between(self, begin: datetime, end: datetime, most: int) -> list[datetime]:
        if self.every_s is not None and end - begin > (room := timedelta(seconds=self.every_s * (most + 1))):
            begin = end - room
        ticks: deque[datetime] = deque(maxlen=most)
        for at in self.ticks(begin):
            if at > end:
                break
            ticks.append(at)
        return list(ticks)


def _share(text: str) -> float:
    """A number from 0 to below 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def _interval_after(start: datetime | None, every_s: int, moment: datetime) -> datetime:
    """Computed from the number of intervals since the start, so that no error accumulates."""
    begin = (start or datetime(1970, 1, 1, tzinfo=UTC)).astimezone(UTC)
    if begin > moment:
        return begin
    every = timedelta(seconds=every_s)
    return begin + ((moment - begin) // every + 1) * every


def _cron_after(cron: str, zone: tzinfo, moment: datetime) -> datetime:
    """Raises StopIteration when no day fits."""
    for tick in CronSim(cron, moment.astimezone(zone)):
        if (at := tick.astimezone(UTC)) > moment:  # in a repeated hour, cronsim returns the first one again
            return at
    raise StopIteration


def check_cron(cron: Any) -> str:
    """Returns the expression with one space between its fields. Raises InvalidInputError (field cron)."""
    if not isinstance(cron, str) or len(cron) > LENGTH:
        raise _bad("cron", f"cron must be a text of at most {LENGTH} characters")
    fields = cron.split()
    if len(fields) != 5:
        raise _bad("cron", f"cron has five fields, minute hour day month weekday, not {len(fields)}: 30 2 * * MON-FRI")
    text = " ".join(fields)
    try:
        first = next(CronSim(text, datetime(2000, 1, 1)), None)  # without a zone: only the days are checked
    except CronSimError as error:
        hint = ", or a day that its months do not have" if "day-of-month" in str(error) else ""
        raise _bad("cron", f"cron {text!r}: {str(error).lower()}{hint}") from None
    if first is None:
        raise _bad("cron", f"cron {text!r} never comes: no day of the next fifty years matches")
    return text


def zone_of(name: Any) -> tzinfo:
    """The zone called `name`, like Europe/Berlin; empty: the site's. Raises InvalidInputError (field timezone)."""
    if name == "":
        return timezone.get_default_timezone()
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):  # zoneinfo raises different errors for different bad names
        near = did_you_mean(name, available_timezones())
        raise _bad("timezone", f"timezone must be a name like Europe/Berlin, not {str(name)[:64]!r}{near}") from None


def _bad(field: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, field=field)
