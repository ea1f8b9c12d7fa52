"""Which followers may get something now: their rows are locked, their owners active, their agents enabled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ravi_django.access import Rights, Wanted
from ravi_django.models import Agent, Follow
from ravi_django.runtime.catalog import registry
from ravi_django.runtime.db import postgres
from ravi_django.runtime.people.addressees import has_active_field
from ravi_django.runtime.social.deliveries import Follower
from ravi_django.runtime.social.follow_rows import BEHIND, oldest_due

log = logging.getLogger("ravi.fan_out")

OPEN = "authenticated"  # the `access` of an agent that every user may run


@dataclass(frozen=True, slots=True)
class Locked:
    """A follow whose row is locked until the commit."""

    follower: Follower
    every_s: int
    last_at: datetime | None
    items_at: datetime | None  # when the oldest of its waiting items is due
    dropped: int  # items that were dropped, and are not reported yet

    def due_at(self, present: datetime) -> datetime | None:
        """When it gets something that is published now; None: at once."""
        if self.items_at is not None:
            return BEHIND if self.items_at < BEHIND else present
        if self.every_s and self.last_at is not None:
            at = self.last_at + timedelta(seconds=self.every_s)
            return at if at > present else None
        return None


@dataclass(slots=True)
class Looked:
    """Follows that were locked; one that is in no list is locked by another transaction, or deleted."""

    found: list[Locked] = field(default_factory=list)  # may get something
    refused: list[UUID] = field(default_factory=list)  # may not
    unknown: list[Locked] = field(default_factory=list)  # no row and no code of this process has its agent
    undecided: list[Locked] = field(default_factory=list)  # the site's policy raises for its topic

    @property
    def locked(self) -> list[Locked]:
        return [*self.found, *self.unknown, *self.undecided]

    @property
    def ids(self) -> set[UUID]:
        return {one.follower.id for one in self.locked}.union(self.refused)


def lock_followers(ids: Sequence[UUID], rights: Rights | None = None) -> Looked:
    """Lock those of these follows that nobody else has locked, and see which may get something."""
    active = owner_is_active()
    # Where users have no such column, the topic takes its place in the row.
    names = ("id", "agent", "owner_id", "tenant", "session_id", "home_id", "every_s", "last_at", "topic", "dropped")
    rows: Any = Follow.objects.filter(id__in=ids).order_by("id")
    rows = rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    found = list(rows.values_list(*names, active or "topic"))
    waiting = oldest_due([row[0] for row in found])  # read after the lock
    agents = _agents({row[1] for row in found})
    versions, disabled = _versions(agents)
    wanted = {(row[1], row[2], row[8]) for row in found if row[2] is not None and row[1] in versions}
    refused, failed = _refused(wanted, agents, rights)
    looked, off = Looked(), Counter[str]()
    for follow_id, agent, owner_id, tenant, session_id, home_id, every_s, last_at, topic, dropped, is_active in found:
        follower = Follower(follow_id, agent, owner_id, tenant, session_id, session_id or home_id, versions.get(agent))
        one = Locked(follower, every_s, last_at, waiting.get(follow_id), dropped)
        if owner_id is not None and active and not is_active:
            looked.refused.append(follow_id)
        elif owner_id is not None and topic in failed:
            looked.undecided.append(one)
        elif agent in disabled or (agent, owner_id, topic) in refused:
            looked.refused.append(follow_id)
            off.update([agent] if agent in disabled else ())
        else:
            (looked.found if agent in versions else looked.unknown).append(one)
    for topic, error in failed.items():
        log.error(
            "topic %s: its followers that have an owner wait, may_receive has failed",
            topic,
            exc_info=error,
            extra={"action": "fan_out.failed"},
        )
    for agent, count in off.items():
        log.warning(
            "agent %s is disabled: its %d follows get nothing",
            *(agent, count),
            extra={"action": "fan_out.disabled"},
        )
    return looked


def being_changed(ids: Iterable[UUID]) -> list[UUID]:
    """Those of these follows that another transaction has locked and does not delete. A row that refers to a follow
    that is being deleted would have to wait."""
    wanted = "{" + ",".join(map(str, ids)) + "}"
    if wanted == "{}" or not postgres.in_use():
        return []
    sql = "SELECT id FROM ravi_follow WHERE id = ANY (%s::uuid[]) FOR KEY SHARE SKIP LOCKED"
    return [row[0] for row in postgres.execute(sql, [wanted])]


def owner_is_active() -> str | None:
    return "owner__is_active" if has_active_field() else None


def _agents(addresses: set[str]) -> dict[str, Agent]:
    """Their rows, and an unsaved one for an agent of this process's code that has none. Another process may know the
    agents that are left out."""
    rows = {row.address: row for row in Agent.objects.filter(address__in=addresses).defer("spec")}
    return {place: Agent(address=place) for place in addresses if place in registry._agents} | rows


def _versions(agents: Mapping[str, Agent]) -> tuple[dict[str, int | None], set[str]]:
    """The enabled agents, each with the version of its spec if it is a row; and the disabled ones."""
    found: dict[str, int | None] = {}
    for place, row in agents.items():
        if row.enabled:
            is_row = row.source == Agent.Source.ADMIN and place not in registry._agents
            found[place] = row.version if is_row else None
    return found, set(agents).difference(found)


def _is_open(agent: Agent) -> bool:
    """Whether every user may run it, by its `access`."""
    is_here = agent.address in registry._agents
    return (registry.access_of(agent.address) if is_here else agent.access) == OPEN


def _refused(
    wanted: set[Wanted], agents: Mapping[str, Agent], rights: Rights | None
) -> tuple[set[Wanted], dict[str, Exception]]:
    if rights is not None and rights.by_access:
        closed = {place for place, agent in agents.items() if not _is_open(agent)}
        wanted = {one for one in wanted if one[0] in closed}
    if rights is None or not wanted:
        return set(), {}
    return rights.refused(wanted, agents)
