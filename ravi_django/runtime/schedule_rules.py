"""What a schedule has to be before it is kept, and the timetable that its row says."""

from __future__ import annotations

from datetime import datetime

from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.checks import check_whole
from ravi_django.models import Schedule
from ravi_django.runtime import specs, ticks
from ravi_django.runtime.store import schedules as store
from ravi_django.runtime.submit import _address_of, _budget, _message, _metadata, _priority, _session, _tenant
from ravi_django.runtime.ticks import Timetable

YEARS = (1970, 9000)  # of starts_at: there are ticks behind it, and their times can be told in every zone
RESERVED = ("schedule", "tick", "missed")  # metadata that the scheduler writes


def timetable(row: Schedule) -> Timetable:
    """Raises InvalidInputError (fields cron, every_s, timezone, jitter_s)."""
    zone = ticks.zone_of(row.timezone)
    cron = ticks.check_cron(row.cron) if row.every_s is None else ""
    every_s = None if row.every_s is None else check_whole("every_s", row.every_s, 1, ticks.MOST_S)
    start = row.starts_at
    if every_s is not None and start is None:
        start = row.created_at if isinstance(row.created_at, datetime) else store.present()
        start = start.replace(microsecond=0)
    return Timetable(cron, every_s, zone, start, check_whole("jitter_s", row.jitter_s, 0, ticks.MOST_S), str(row.id))


def check(row: Schedule) -> None:
    """What a schedule has to be before it is kept, wherever it comes from. Raises InvalidInputError with `field`,
    AgentNotFoundError and SessionNotFoundError."""
    if not isinstance(row.name, str) or not row.name.strip() or len(row.name) > 200 or "\0" in row.name:
        raise InvalidInputError("name must be a text of 1 to 200 characters", field="name")
    agent = _address_of(row.agent)
    found = specs.find(agent)
    if not isinstance(row.input, str):
        raise InvalidInputError("input must be a text", field="input")
    _message(agent, row.input)
    _tenant(row.tenant)
    _session(row.session, row.owner)
    _check_rule(row)
    _priority(row.priority)
    _budget(row.budget)
    metadata = _metadata(row.metadata)
    if reserved := [name for name in RESERVED if name in metadata]:
        raise InvalidInputError(f"metadata: {reserved[0]!r} is what the schedule itself says", field="metadata")
    found.check_variables(metadata)


def check_name(row: Schedule) -> None:
    """Raises InvalidInputError when its owner has another of that name."""
    others = Schedule.objects.filter(owner=row.owner_id, tenant=row.tenant, name=row.name).exclude(id=row.id)
    if others.exists():
        raise InvalidInputError(f"there is a schedule {row.name!r} of that owner and tenant already", field="name")


def _check_rule(row: Schedule) -> None:
    if bool(row.cron) == (row.every_s is not None):
        raise InvalidInputError("a schedule has a cron expression or an interval: one of the two", field="cron")
    times = timetable(row)
    if row.starts_at is not None and not YEARS[0] <= row.starts_at.year <= YEARS[1]:
        raise InvalidInputError(f"starts_at must be in the years {YEARS[0]} to {YEARS[1]}", field="starts_at")
    if row.cron:
        row.cron = times.cron
    elif row.jitter_s >= (row.every_s or 0):
        raise InvalidInputError("jitter_s must be less than every_s", field="jitter_s")
    if row.catch_up not in Schedule.CatchUp.values:
        names = ", ".join(Schedule.CatchUp.values)
        raise InvalidInputError(f"catch_up must be one of {names}, not {row.catch_up!r}", field="catch_up")
