"""The public functions of schedules: check, save, enable, remove, and submit a run. `ticking` submits what is due,
`timetable` computes the ticks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError

from ravi_django import access
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.kernel import Agent, AgentId, ForbiddenError, InvalidInputError, NotFoundError, Priority
from ravi_django.kernel.checks import check_text, check_whole, seconds_of
from ravi_django.models import Run, Schedule, Session, Source
from ravi_django.runs import sessions
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import (
    address_of,
    budget_of,
    conversation_of,
    message_of,
    metadata_of,
    moment_of,
    owner_of,
    priority_of,
    session_of,
    tenant_of,
)
from ravi_django.runs.submit import submit_once
from ravi_django.wings.feeds.schedules.timetable import MOST_S, Timetable, check_cron, zone_of

YEARS = (1970, 9000)  # of starts_at: later ticks must exist, and be valid times in every zone
RESERVED = ("schedule", "tick", "missed")  # metadata that the scheduler writes


def timetable(row: Schedule) -> Timetable:
    """Raises InvalidInputError (fields cron, every_s, timezone, jitter_s)."""
    zone = zone_of(row.timezone)
    cron = check_cron(row.cron) if row.every_s is None else ""
    every_s = None if row.every_s is None else check_whole("every_s", row.every_s, 1, MOST_S)
    start = row.starts_at
    if every_s is not None and start is None:
        start = row.created_at if isinstance(row.created_at, datetime) else clock.present()
        start = start.replace(microsecond=0)
    return Timetable(cron, every_s, zone, start, check_whole("jitter_s", row.jitter_s, 0, MOST_S), str(row.id))


def check(row: Schedule) -> None:
    """Check a schedule before it is saved. Raises InvalidInputError with `field`, AgentNotFoundError and
    SessionNotFoundError."""
    if not check_text("name", row.name, 200).strip():
        raise InvalidInputError("name must not be blank", field="name")
    agent = address_of(row.agent)
    runnable = specs.find(agent)
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
        raise InvalidInputError(f"metadata: {reserved[0]!r} is set by the schedule; remove it", field="metadata")
    runnable.check_variables(metadata)


def check_name(row: Schedule) -> None:
    """Raises InvalidInputError when the owner has another schedule of that name."""
    others = Schedule.objects.filter(owner=row.owner_id, tenant=row.tenant, name=row.name).exclude(id=row.id)
    if others.exists():
        raise InvalidInputError(f"this owner and tenant already have a schedule {row.name!r}", field="name")


def _check_rule(row: Schedule) -> None:
    if bool(row.cron) == (row.every_s is not None):
        raise InvalidInputError("set either a cron expression or an interval", field="cron")
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
    jitter_s: int | timedelta = 0,
    catch_up: str = "one",
    session: Session | UUID | str | None = None,
    user: Any = None,
    tenant: str = "",
    priority: str | Priority = "normal",
    budget: Any = None,
    metadata: Mapping[str, Any] | None = None,
    enabled: bool | None = None,
) -> Schedule:
    """Create or change a schedule, which submits a run of `agent` with `input` at every tick. The ticks are those of
    `cron` (minute hour day month weekday) in the `timezone` (empty: the site's), or one `every` so many seconds,
    counted from `starts_at` or from now.

    The `name` is unique for the user and tenant. A second call with it changes that row; its next tick stays when the
    rule is the same, and `enabled` stays unless it is set. Without a `user` the runs have no owner. The other arguments
    are those of `submit`; `catch_up` is "skip", "one" or "all".

    Raises InvalidInputError (with `field`), AgentNotFoundError and SessionNotFoundError; then nothing is written.
    """
    owner, every_s = owner_of(user), seconds_of(every)
    if every_s is not None and not isinstance(every_s, int):
        raise InvalidInputError(f"every is a timedelta or a whole number of seconds, not {every!r}", field="every")
    fields = {
        "agent": str(address_of(agent)),
        "input": input,
        "session": conversation_of(session, owner, tenant_of(tenant)),
        "cron": cron,
        "every_s": every_s,
        "timezone": timezone,
        "starts_at": moment_of("starts_at", starts_at),
        "jitter_s": seconds_of(jitter_s),
        "catch_up": catch_up,
        "priority": priority_of(priority).name.lower(),
        "budget": budget_of(budget),
        "metadata": metadata_of(metadata),
    }
    if enabled is not None:
        fields["enabled"] = enabled
    key = {"owner": owner, "tenant": tenant, "name": name}
    check(Schedule(**key, **fields))
    try:
        return _put(key, fields)
    except IntegrityError:  # another process has just created it
        return _put(key, fields)


def _put(key: dict[str, Any], fields: dict[str, Any]) -> Schedule:
    with transaction.atomic():
        fields["session"] = sessions.stored(fields["session"], fields["agent"])
        row = Schedule.objects.select_for_update(no_key=True, of=("self",)).filter(**key).first() or Schedule(**key)
        for field, value in fields.items():
            setattr(row, field, value)
        return _save(row)


def save_checked(row: Schedule) -> Schedule:
    """Save a new or changed schedule. When its rule has changed or it was enabled, its next tick is the first one from
    now on: ticks that it missed while disabled are not submitted. Raises what `check` does, and InvalidInputError when
    the name is taken."""
    check(row)
    check_name(row)
    return _save(row)


def _save(row: Schedule) -> Schedule:
    with transaction.atomic():
        old = None if row._state.adding else find(row)
        fields: list[str] = list(EDITED)
        if old is None:
            row.created_at = clock.present()
        if old is None or not _has_next(old) or any(getattr(old, name) != getattr(row, name) for name in RULE):
            _set_next(row)
            fields += COMING
        if old is None:
            row.save(force_insert=True)
        else:
            row.save(update_fields=fields)
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
        raise InvalidInputError("starts_at is too late: no tick follows it", field="starts_at")


def enable(schedule: Schedule | UUID | str) -> Schedule:
    """Enable a schedule. Its next tick is the first one from now on. Raises NotFoundError, and what `check` does."""
    return _switch(schedule, True)


def disable(schedule: Schedule | UUID | str) -> Schedule:
    """Disable a schedule. Its runs continue. Raises NotFoundError."""
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
        row.save(update_fields=["enabled", *COMING] if enabled else ["enabled"])
    return row


def remove(schedule: Schedule | UUID | str) -> None:
    """Delete a schedule and its ticks; its runs stay. Does nothing when it is deleted already."""
    Schedule.objects.filter(id=_id(schedule)).delete()


def find(schedule: Schedule | UUID | str) -> Schedule:
    """The current row, locked in the caller's transaction. Raises NotFoundError."""
    row: Schedule | None = Schedule.objects.select_for_update(no_key=True).filter(id=_id(schedule)).first()
    if row is None:
        raise NotFoundError(f"there is no schedule {schedule}")
    return row


def _id(schedule: Schedule | UUID | str) -> UUID:
    if isinstance(schedule, Schedule):
        return schedule.id
    try:
        return schedule if isinstance(schedule, UUID) else UUID(str(schedule))
    except ValueError:
        raise NotFoundError(f"there is no schedule {schedule!r}") from None


def next_ticks(schedule: Schedule, n: int = 5) -> list[datetime]:
    """The next ticks from now on, in UTC and without jitter. The schedule may be unsaved or disabled. Raises
    InvalidInputError for an invalid rule."""
    return timetable(schedule).next(clock.present(), n)


def run_now(schedule: Schedule | UUID | str) -> Run:
    """Submit a run of the schedule now, without a tick. Raises what `submit` does, NotFoundError, and ForbiddenError
    when the owner is not active."""
    with transaction.atomic():
        return submit_for(schedule if isinstance(schedule, Schedule) else find(schedule))[0]


def submit_for(
    row: Schedule,
    *,
    tick: datetime | None = None,
    missed: int = 0,
    send: Any = None,
    agents: dict[str, specs.RunnableAgent] | None = None,
) -> tuple[Run, bool]:
    """The run of a tick, and whether it is new; without a tick always a new run. `send` replaces the dispatch on
    commit; `agents` is a cache of the agents that this sweep has looked up."""
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
    """Raises ForbiddenError when the owner may not run the agent."""
    _find_for(row.owner, {}, AgentId.parse(row.agent))


def _find_for(owner: Any, agents: dict[str, specs.RunnableAgent], address: AgentId) -> specs.RunnableAgent:
    """Find an agent that the owner may run. Raises AgentNotFoundError and ForbiddenError."""
    if (agent := agents.get(str(address))) is None:
        agent = agents[str(address)] = specs.find(address)
    if owner is None:
        return agent
    if not getattr(owner, "is_active", True):
        raise ForbiddenError(f"its owner, {owner.get_username()}, is not active")
    if not access.may_run(owner, agent):
        raise ForbiddenError(f"its owner, {owner.get_username()}, may not run {address}")
    return agent
