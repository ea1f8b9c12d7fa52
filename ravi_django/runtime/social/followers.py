"""Which followers may be given something now: their rows locked, their owners active, their agents there."""

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
from ravi_django.runtime.social.backlog import BEHIND, oldest_due
from ravi_django.runtime.social.deliveries import Follower

log = logging.getLogger("ravi.fan_out")

OPEN = "authenticated"  # the `access` of an agent that every user may run


@dataclass(frozen=True, slots=True)
class Locked:
    """A follow whose row is ours until the commit."""

    follower: Follower
    every_s: int
    last_at: datetime | None
    topic: str
    items_at: datetime | None  # when the oldest of what waits for it already is due: what comes now is behind that
    dropped: int  # items that were too many, and of which it is still to be told

    def due_at(self, present: datetime) -> datetime | None:
        """When it is to be given something that comes now; None: at once."""
        if self.items_at is not None:
            return BEHIND if self.items_at < BEHIND else present
        if self.every_s and self.last_at is not None:
            at = self.last_at + timedelta(seconds=self.every_s)
            return at if at > present else None
        return None


@dataclass(slots=True)
class Looked:
    """What follows were found to be; who is nowhere is somebody else's now, or gone."""

    found: list[Locked] = field(default_factory=list)  # may be given something
    refused: list[UUID] = field(default_factory=list)  # may not
    unknown: dict[UUID, str] = field(default_factory=dict)  # of an agent that neither a row nor this process knows
    undecided: dict[UUID, Exception] = field(default_factory=dict)  # the site's policy raises for their topic

    @property
    def ids(self) -> set[UUID]:
        return {one.follower.id for one in self.found}.union(self.refused, self.unknown, self.undecided)


def lock_followers(ids: Sequence[UUID], rights: Rights | None = None) -> Looked:
    """Lock those of these follows that nobody else has, and look at what they may be given."""
    active = owner_is_active()
    # A placeholder is wanted for the column where users have none; the topic is there anyway.
    names = ("id", "agent", "owner_id", "tenant", "session_id", "home_id", "every_s", "last_at", "topic", "dropped")
    rows: Any = Follow.objects.filter(id__in=ids).order_by("id")
    rows = rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    found = list(rows.values_list(*names, active or "topic"))
    waiting = oldest_due([row[0] for row in found])  # behind the lock: nobody takes it from under us
    agents = _agents({row[1] for row in found})
    versions, disabled = _versions(agents)
    wanted = {(row[1], row[2], row[8]) for row in found if row[2] is not None and row[1] in versions}
    refused, failed = _refused(wanted, agents, rights)
    looked, off = Looked(), Counter[str]()
    for follow_id, agent, owner_id, tenant, session_id, home_id, every_s, last_at, topic, dropped, is_active in found:
        if owner_id is not None and active and not is_active:
            looked.refused.append(follow_id)
        elif owner_id is not None and topic in failed:
            looked.undecided[follow_id] = failed[topic]
        elif agent in disabled or (agent, owner_id, topic) in refused:
            looked.refused.append(follow_id)
            off.update([agent] if agent in disabled else ())
        elif agent not in versions:
            looked.unknown[follow_id] = agent
        else:
            home = session_id or home_id
            follower = Follower(follow_id, agent, owner_id, tenant, session_id, home, versions[agent])
            looked.found.append(Locked(follower, every_s, last_at, topic, waiting.get(follow_id), dropped))
    for agent, count in off.items():
        log.warning(
            "agent %s is disabled: %d follows of it are given nothing",
            *(agent, count),
            extra={"action": "fan_out.disabled"},
        )
    return looked


def being_changed(ids: Iterable[UUID]) -> list[UUID]:
    """Those of these follows, locked by somebody else, that stay: the others are just being deleted, and whoever would
    refer to them had to wait for that."""
    wanted = "{" + ",".join(map(str, ids)) + "}"
    if wanted == "{}" or not postgres.in_use():
        return []
    sql = "SELECT id FROM ravi_follow WHERE id = ANY (%s::uuid[]) FOR KEY SHARE SKIP LOCKED"
    return [row[0] for row in postgres.execute(sql, [wanted])]


def owner_is_active() -> str | None:
    return "owner__is_active" if has_active_field() else None


def _agents(addresses: set[str]) -> dict[str, Agent]:
    """Their rows. That of code may not be saved yet. Absent is one that has no row, and that the code of this process
    does not know: another process may."""
    rows = {row.address: row for row in Agent.objects.filter(address__in=addresses).defer("spec")}
    return {place: Agent(address=place) for place in addresses if place in registry._agents} | rows


def _versions(agents: Mapping[str, Agent]) -> tuple[dict[str, int | None], set[str]]:
    """The agents that may be run, with the version of the spec of those that are rows; and those that are disabled."""
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
