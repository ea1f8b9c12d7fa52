"""Which followers may be given something now: their rows locked, their owners active, their agents there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist

from ravi_django.db import transaction
from ravi_django.models import Agent, Follow
from ravi_django.runtime import registry
from ravi_django.runtime.store import postgres
from ravi_django.runtime.store.backlog import BEHIND, oldest_due
from ravi_django.runtime.store.deliveries import Follower

log = logging.getLogger("ravi.fan_out")

# Of the site's policy, see `FollowPolicy.may_receive`: the owners (users) and the topic; None is all.
MayReceive = Callable[[Sequence[Any], str], Collection[Any] | None]


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


def lock_followers(ids: Sequence[UUID], may_receive: MayReceive | None = None) -> Looked:
    """Lock those of these follows that nobody else has, and look at what they may be given."""
    active = owner_is_active()
    # A placeholder is wanted for the column where users have none; the topic is there anyway.
    names = ("id", "agent", "owner_id", "tenant", "session_id", "home_id", "every_s", "last_at", "topic", "dropped")
    rows: Any = Follow.objects.filter(id__in=ids).order_by("id")
    rows = rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    found = list(rows.values_list(*names, active or "topic"))
    waiting = oldest_due([row[0] for row in found])  # behind the lock: nobody takes it from under us
    versions, disabled = _versions({row[1] for row in found})
    owners = {row[2] for row in found if row[2] is not None}
    refused, failed = _refused(owners, {row[8] for row in found}, may_receive)
    looked, off = Looked(), Counter[str]()
    for follow_id, agent, owner_id, tenant, session_id, home_id, every_s, last_at, topic, dropped, is_active in found:
        if owner_id is not None and active and not is_active:
            looked.refused.append(follow_id)
        elif owner_id is not None and topic in failed:
            looked.undecided[follow_id] = failed[topic]
        elif agent in disabled or (topic, owner_id) in refused:
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
    try:
        get_user_model()._meta.get_field("is_active")
    except FieldDoesNotExist:
        return None
    return "owner__is_active"


def _versions(agents: set[str]) -> tuple[dict[str, int | None], set[str]]:
    """The agents that may be run, with the version of the spec of those that are rows; and those that are switched off.
    In neither is one that has no row, and that the code of this process does not know: another process may."""
    rows = {row[0]: row[1:] for row in Agent.objects.filter(address__in=agents).values_list(*_AGENT)}
    found: dict[str, int | None] = {}
    disabled = set()
    for agent in agents:
        is_code = agent in registry._agents
        source, version, enabled = rows.get(agent, (Agent.Source.CODE, None, is_code))
        if enabled:
            found[agent] = version if source == Agent.Source.ADMIN and not is_code else None
        elif agent in rows:
            disabled.add(agent)
    return found, disabled


_AGENT = ("address", "source", "version", "enabled")


def _refused(
    owners: set[Any], topics: set[str], may_receive: MayReceive | None
) -> tuple[set[tuple[str, Any]], dict[str, Exception]]:
    """Whom the site's policy gives nothing of a topic to, and the topics that it raises for."""
    refused: set[tuple[str, Any]] = set()
    failed: dict[str, Exception] = {}
    if may_receive is None or not owners:
        return refused, failed
    users = list(get_user_model()._default_manager.filter(pk__in=owners))
    for topic in topics:
        try:
            with transaction.atomic():  # a query of its own that fails ends with it
                allowed = may_receive(users, topic)
                taken = owners if allowed is None else set(allowed)
        except Exception as error:
            failed[topic] = error
        else:
            refused |= {(topic, owner) for owner in owners - taken}
    return refused, failed
