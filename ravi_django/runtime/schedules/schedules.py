"""What a schedule has to be before it is kept, and the timetable that its row says.

Schedules: rows that submit runs by the clock. `ticking` submits what is due, `timetable` computes when.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.utils import timezone as zones
from django.utils.dateparse import parse_datetime

from ravi_django import access
from ravi_django.db import transaction
from ravi_django.kernel import Agent, AgentId, ForbiddenError, InvalidInputError, NotFoundError, Priority
from ravi_django.kernel.checks import check_whole
from ravi_django.models import Run, Schedule, Session, Source
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.db import clock
from ravi_django.runtime.runs.checks import (
    address_of,
    budget_of,
    message_of,
    metadata_of,
    priority_of,
    session_of,
    tenant_of,
)
from ravi_django.runtime.runs.submit import submit_once
from ravi_django.runtime.schedules import rows as schedule_rows, timetable as schedules_timetable
from ravi_django.runtime.schedules.timetable import Timetable

YEARS = (1970, 9000)  # of starts_at: there are ticks behind it, and their times can be told in every zone
RESERVED = ("schedule", "tick", "missed")  # metadata that the scheduler writes


def timetable(row: Schedule) -> Timetable:
    """Raises InvalidInputError (fields cron, every_s, timezone, jitter_s)."""
    zone = schedules_timetable.zone_of(row.timezone)
    cron = schedules_timetable.check_cron(row.cron) if row.every_s is None else ""
    every_s = None if row.every_s is None else check_whole("every_s", row.every_s, 1, schedules_timetable.MOST_S)
    start = row.starts_at
    if every_s is not None and start is None:
        start = row.created_at if isinstance(row.created_at, datetime) else clock.present()
        start = start.replace(microsecond=0)
    return Timetable(
        cron, every_s, zone, start, check_whole("jitter_s", row.jitter_s, 0, schedules_timetable.MOST_S), str(row.id)
    )


def check(row: Schedule) -> None:
    """What a schedule has to be before it is kept, wherever it comes from. Raises InvalidInputError with `field`,
    AgentNotFoundError and SessionNotFoundError."""
    if not isinstance(row.name, str) or not row.name.strip() or len(row.name) > 200 or "\0" in row.name:
        raise InvalidInputError("name must be a text of 1 to 200 characters", field="name")
    agent = address_of(row.agent)
    found = specs.find(agent)
    if not isinstance(row.input, str):
        raise InvalidInputError("input must be a text", field="input")
    message_of(agent, row.input)
    tenant_of(row.tenant)
    session_of(row.session, row.owner)
    _check_rule(row)
    priority_of(row.priority)
    budget_of(row.budget)
    metadata = metadata_of(row.metadata)
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


RULE = ("cron", "every_s", "timezone", "starts_at", "jitter_s")
EDITED = (
    *("name", "agent", "input", "owner", "tenant", "session", "priority", "budget", "metadata", "catch_up", "enabled"),
    *RULE,
)
COMING = ("next_at", "due_at", "seen_at", "error")  # of the next tick


def schedule(
    agent: Agent | AgentId | str,
    input: str,
    *,
    name: str,
    cron: str = "",
    every: timedelta | int | None = None,
    timezone: str = "",
    starts_at: datetime | str | None = None,
    jitter_s: int = 0,
    catch_up: str = "one",
    session: Session | UUID | str | None = None,
    user: Any = None,
    tenant: str = "",
    priority: str | Priority = "normal",
    budget: Any = None,
    metadata: Mapping[str, Any] | None = None,
    enabled: bool | None = None,
) -> Schedule:
    """Have a run of `agent` on `input` submitted at every tick: of `cron` (minute hour day month weekday) in the
    `timezone` (empty: the site's), or `every` so many seconds, counted from `starts_at` or from now.

    Its `name` is its own among those of the same user and tenant: the same call again changes that row, and leaves its
    next tick alone where the rule is the same. So is `enabled`, unless it is given. Without a `user` the runs are
    the system's. The other arguments are those of `submit`; `catch_up` is "skip", "one" or "all".

    Raises InvalidInputError (with `field`), AgentNotFoundError and SessionNotFoundError; nothing is written then.
    """
    owner = user if user is not None and user.is_authenticated else None
    given = {
        "agent": str(address_of(agent)),
        "input": input,
        "session": session_of(session, owner),
        "cron": cron,
        "every_s": _seconds(every),
        "timezone": timezone,
        "starts_at": _moment(starts_at),
        "jitter_s": jitter_s,
        "catch_up": catch_up,
        "priority": priority_of(priority).name.lower(),
        "budget": budget_of(budget),
        "metadata": metadata_of(metadata),
    }
    if enabled is not None:
        given["enabled"] = enabled
    whose = {"owner": owner, "tenant": tenant, "name": name}
    check(Schedule(**whose, **given))
    try:
        return _put(whose, given)
    except IntegrityError:  # another process has made it this moment
        return _put(whose, given)


def _put(whose: dict[str, Any], given: dict[str, Any]) -> Schedule:
    """What is not given stays as it is in the row, locked: somebody may be changing that."""
    with transaction.atomic():
        row = schedule_rows.lock_named(**whose) or Schedule(**whose)
        for field, value in given.items():
            setattr(row, field, value)
        return _keep(row)


def keep(row: Schedule) -> Schedule:
    """Keep a schedule that was made or changed. Where its rule has changed, or it is switched on, its next tick is the
    first one from now on: what it missed while it was off is not made up for. Raises what `check` does, and
    InvalidInputError when the name is taken."""
    check(row)
    check_name(row)
    return _keep(row)


def _keep(row: Schedule) -> Schedule:
    with transaction.atomic():
        old = None if row._state.adding else schedule_rows.lock(row.id)
        if old is None and not row._state.adding:
            raise NotFoundError(f"schedule {row.id} is gone")
        fields: list[str] = list(EDITED)
        if old is None:
            row.created_at = clock.present()
        if old is None or not _has_next(old) or any(getattr(old, name) != getattr(row, name) for name in RULE):
            _set_next(row)
            fields += COMING
        if old is None:
            return schedule_rows.insert(row)
        schedule_rows.write(row, fields)
        row.refresh_from_db()
    return row


def _has_next(row: Schedule) -> bool:
    return row.enabled and row.next_at is not None and row.due_at is not None


def _set_next(row: Schedule) -> None:
    times, present = timetable(row), clock.present()
    row.next_at = times.after(present) if row.enabled else None
    row.due_at = None if row.next_at is None else times.due(row.next_at)
    row.seen_at, row.error = None, "" if row.enabled else row.error
    if row.enabled and row.next_at is None:
        raise InvalidInputError("starts_at leaves no tick to come", field="starts_at")


def enable(schedule: Schedule | UUID | str) -> Schedule:
    """Its next tick is the first one from now on. Raises NotFoundError, and what `check` does."""
    return _switch(schedule, True)


def disable(schedule: Schedule | UUID | str) -> Schedule:
    """It submits nothing from here on; its runs go on. Raises NotFoundError."""
    return _switch(schedule, False)


def _switch(schedule: Schedule | UUID | str, enabled: bool) -> Schedule:
    with transaction.atomic():
        row = find(schedule)
        if row.enabled == enabled and (not enabled or _has_next(row)):
            return row
        row.enabled = enabled
        if enabled:
            check(row)
            _set_next(row)
        schedule_rows.write(row, ["enabled", *COMING] if enabled else ["enabled"])
    return row


def remove(schedule: Schedule | UUID | str) -> None:
    """The schedule and what is known of its ticks; its runs stay. One that is gone is gone."""
    schedule_rows.remove(_id(schedule))


def find(schedule: Schedule | UUID | str) -> Schedule:
    """As it is now, locked in the caller's transaction. Raises NotFoundError."""
    found = schedule_rows.lock(_id(schedule))
    if found is None:
        raise NotFoundError(f"there is no schedule {schedule}")
    return found


def _id(schedule: Schedule | UUID | str) -> UUID:
    if isinstance(schedule, Schedule):
        return schedule.id
    try:
        return schedule if isinstance(schedule, UUID) else UUID(str(schedule))
    except ValueError:
        raise NotFoundError(f"there is no schedule {schedule!r}") from None


def next_ticks(schedule: Schedule, n: int = 5) -> list[datetime]:
    """The next ticks from now on, in UTC and without their jitter; also of one that is not saved, or is off. Raises
    InvalidInputError when its rule is not one."""
    return timetable(schedule).next(clock.present(), n)


# --------------------------------------------------------------------------------------------------- submitting


def run_now(schedule: Schedule) -> Run:
    """A run as its ticks submit them, at once and beside them. Raises what `submit` does, and ForbiddenError when the
    owner is not active."""
    return submit_for(schedule)[0]


def submit_for(
    row: Schedule,
    *,
    tick: datetime | None = None,
    missed: int = 0,
    send: Any = None,
    agents: dict[str, specs.Found] | None = None,
) -> tuple[Run, bool]:
    """The run of a tick, and whether it is new; without a tick one more. `send` replaces the dispatch on commit;
    `agents` are those that were found this moment, and takes what is found."""
    metadata: dict[str, Any] = {**(row.metadata or {}), "schedule": str(row.id)}
    if tick is not None:
        metadata["tick"] = tick.isoformat()
    if missed:
        metadata["missed"] = missed
    return submit_once(
        row.agent,
        row.input,
        session=row.session,
        user=row.owner,
        tenant=row.tenant,
        idempotency_key=f"schedule:{row.id}:{tick.isoformat()}" if tick is not None else None,
        priority=row.priority,
        budget=row.budget,
        metadata=metadata,
        send=send,
        find=partial(_find_for, row.owner, {} if agents is None else agents),
    )


def check_owner(row: Schedule | Source) -> None:
    """Raises ForbiddenError where its owner may not run its agent."""
    _find_for(row.owner, {}, AgentId.parse(row.agent))


def _find_for(owner: Any, agents: dict[str, specs.Found], address: AgentId) -> specs.Found:
    """An agent that the schedule's owner may run. Raises AgentNotFoundError and ForbiddenError."""
    if (found := agents.get(str(address))) is None:
        found = agents[str(address)] = specs.find(address)
    if owner is None:
        return found
    if not getattr(owner, "is_active", True):
        raise ForbiddenError(f"its owner, {owner.get_username()}, is not active")
    if not access.may_run(owner, found):
        raise ForbiddenError(f"its owner, {owner.get_username()}, may not run {address}")
    return found


def _seconds(every: Any) -> Any:
    if not isinstance(every, timedelta):
        return every
    if every % timedelta(seconds=1):
        raise InvalidInputError("every must be whole seconds", field="every_s")
    return int(every.total_seconds())


def _moment(value: Any) -> datetime | None:
    """Raises InvalidInputError."""
    try:
        found = parse_datetime(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if found is None and value is None:
        return None
    if not isinstance(found, datetime):
        raise InvalidInputError("starts_at must be ISO 8601, like 2030-01-31T12:00:00Z", field="starts_at")
    return zones.make_aware(found, zones.get_default_timezone()) if zones.is_naive(found) else found
