"""The rows of follows, and of the items that wait for them. A follow is one row per agent, owner, tenant and topic, and
per session if the follow has one; a unique constraint guards it against concurrent calls.

A run's row is locked before a follow's, here as in the fan-out.

Only the oldest item of a follow has a due time; the others have NOT_NEXT. So postponing a follow changes one row,
however many items wait. Removing the oldest item makes the next one due, under the lock of the follow's row.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Subquery, UUIDField

from ravi_django.access import Rights, Wanted
from ravi_django.db import transaction
from ravi_django.engine.db import clock, postgres
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.lease import Lease
from ravi_django.models import ACTIVE, Agent, FeedItem, Follow, Publication, Run
from ravi_django.people.site_rules import has_active_field
from ravi_django.runs.catalog import registry
from ravi_django.runs.lifecycle.erasure_rows import delete_follows
from ravi_django.wings.feeds.social.deliveries import Follower

PAGE = 1000


def follower_of(agent: str, owner_id: Any, tenant: str, session_id: UUID | None = None) -> str:
    """The identity that follows a topic at most once."""
    identity = (agent, "" if owner_id is None else owner_id, tenant, session_id or "")
    return hashlib.sha256("\0".join(map(str, identity)).encode()).hexdigest()


@appending
def follow(lease: Lease, *, follow: Follow) -> None:
    """Write the follow of a run's agent with its journal row. Agents repeat their follows: that is one query, behind
    the fence."""
    changes_every = follow.every_s > 0
    row = known(follow).first()
    if row is None or changes_of(row, follow, every_s=changes_every):
        add_follow(follow, every_s=changes_every)


@appending
def unfollow(lease: Lease, *, follower: str, topic: str) -> None:
    """Delete the follow of a run's agent with its journal row."""
    remove_follow(follower, topic)


def add_follow(follow: Follow, *, metadata: bool = False, every_s: bool = False) -> tuple[Follow, bool]:
    """Write a follow in the caller's transaction; (the row, whether it is new). An existing row takes the fields that
    the flags name, and the home when its own has no active run of the agent. A new follow without a home gets that of
    the follower's other topics."""
    if follow.home_id is None:
        same = Follow.objects.filter(follower=follow.follower, home__isnull=False)
        follow.home_id = same.order_by("id").values_list("home_id", flat=True).first()
    while True:
        with transaction.atomic():
            Follow.objects.bulk_create([clock.stamp(follow)], ignore_conflicts=True)
            row = known(follow).first()
            if row is None:  # deleted between the two
                continue
            if row.id == follow.id:
                return row, True
            if changes := changes_of(row, follow, metadata=metadata, every_s=every_s):
                Follow.objects.filter(id=row.id).update(**changes)
                for name, value in changes.items():
                    setattr(row, name, value)
            return row, False


def known(follow: Follow) -> Any:
    """The row of this follower and topic with its owner. `at_home`: its home has an active run of the agent."""
    at_home = Run.objects.filter(
        session_id=OuterRef("home_id"), agent=OuterRef("agent"), parent=None, status__in=ACTIVE
    )
    rows = Follow.objects.filter(follower=follow.follower, topic=follow.topic).select_related("owner")
    return rows.annotate(at_home=Exists(at_home))


def changes_of(row: Any, wanted: Follow, *, metadata: bool = False, every_s: bool = False) -> dict[str, Any]:
    """The fields of a row of `known` that following again changes."""
    changes: dict[str, Any] = {}
    if wanted.home_id is not None and row.home_id != wanted.home_id and not row.at_home:
        changes["home_id"] = wanted.home_id
    if metadata and row.metadata != wanted.metadata:
        changes["metadata"] = wanted.metadata
    if every_s and row.every_s != wanted.every_s:
        changes["every_s"] = wanted.every_s
    return changes


def remove_follow(follower: str, topic: str) -> bool:
    """Delete a follow with its waiting items, in the caller's transaction; whether there was one."""
    return bool(delete_follows(Follow.objects.filter(follower=follower, topic=topic)))


def followers(topic: str, tenant: str = "", *, after: UUID | None = None, limit: int | None = None) -> Iterator[Follow]:
    """The follows of a topic with an id above `after`, in that order; read page by page."""
    while limit is None or limit > 0:
        rows = Follow.objects.filter(topic=topic, tenant=tenant)
        if after is not None:
            rows = rows.filter(id__gt=after)
        page = list(rows.order_by("id")[: PAGE if limit is None else min(PAGE, limit)])
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id
        limit = None if limit is None else limit - len(page)


log = logging.getLogger("ravi.fan_out")

T = TypeVar("T")

NOT_NEXT = datetime(9999, 1, 1, tzinfo=UTC)  # due time of an item that waits for an older one
MOST = 1_000  # items that wait for one follow


def set_aside(publication_id: UUID, rows: Sequence[tuple[UUID, datetime, int]]) -> None:
    """Deliver a publication later: (follow, due time, number of failed deliveries)."""
    if not rows:
        return
    FeedItem.objects.bulk_create(
        (
            clock.stamp(FeedItem(follow_id=follow_id, publication_id=publication_id, due_at=due, tries=tries))
            for follow_id, due, tries in rows
        ),
        ignore_conflicts=True,
    )


def oldest_due(follow_ids: Collection[UUID]) -> dict[UUID, datetime]:
    """The due time of the oldest item of each follow that has one."""
    rows = Follow.objects.filter(id__in=follow_ids).annotate(items_at=_of_oldest("due_at"))
    return dict(rows.filter(items_at__isnull=False).values_list("id", "items_at"))


def put_off(follow_ids: Iterable[UUID], until: datetime) -> None:
    FeedItem.objects.filter(follow_id__in=list(follow_ids), due_at__lt=until).update(due_at=until)


def move_up(follow_ids: Collection[UUID], present: datetime) -> None:
    """Make the oldest remaining item of each follow due. The caller has locked the follows."""
    ids = Follow.objects.filter(id__in=follow_ids).values_list(_of_oldest("id"), flat=True)
    FeedItem.objects.filter(id__in=list(ids), due_at=NOT_NEXT).update(due_at=present)


def _of_oldest(field: str) -> Subquery:
    items = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("publication_id")
    return Subquery(items.values(field)[:1])


def drop_oldest(follow_ids: Collection[UUID], present: datetime) -> None:
    """Keep the newest MOST items of each follow. The next delivery reports the number of dropped ones. The caller has
    locked the follows."""
    newest = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("-publication_id").values("publication_id")
    rows = Follow.objects.filter(id__in=follow_ids).annotate(
        upto=Subquery(newest[MOST : MOST + 1], output_field=UUIDField())
    )
    counts: Counter[UUID] = Counter()
    for upto, ids in _grouped(dict(rows.filter(upto__isnull=False).values_list("id", "upto"))):
        over = FeedItem.objects.filter(follow_id__in=ids, publication_id__lte=upto)
        counts.update(over.values_list("follow_id", flat=True))
        over.delete()
    for count, ids in _grouped(counts):
        Follow.objects.filter(id__in=ids).update(dropped=F("dropped") + count)
        log.warning(
            "%d items of each of %d follows are dropped, %d wait already: %s",
            *(count, len(ids), MOST, ", ".join(map(str, ids[:20]))),
            extra={"action": "fan_out.dropped"},
        )
    move_up(counts, present)


def forget(rows: Any, why: str) -> None:
    """Give items up: their publications do not count as delivered to these followers."""
    items = list(rows.values_list("id", "publication_id", "follow_id"))
    if not items:
        return
    counts = Counter(publication_id for _, publication_id, _ in items)
    list(Publication.objects.filter(id__in=counts).order_by("id").select_for_update(no_key=True).values_list("id"))
    for count, ids in _grouped(counts):
        Publication.objects.filter(id__in=ids).update(delivered=F("delivered") - count)
    follows = ", ".join(sorted({str(follow_id) for _, _, follow_id in items})[:20])
    log.error("%d items are dropped, %s: follows %s", len(items), why, follows, extra={"action": "fan_out.given_up"})
    FeedItem.objects.filter(id__in=[row[0] for row in items]).delete()


def _grouped(values: Mapping[UUID, T]) -> Iterable[tuple[T, list[UUID]]]:
    """Each different value with its keys: as a rule all have the same one."""
    for value in set(values.values()):
        yield value, [key for key, one in values.items() if one == value]


EVERY_USER = "authenticated"  # the `access` of an agent that every user may run


@dataclass(frozen=True, slots=True)
class LockedFollow:
    """A follow whose row is locked until the commit."""

    follower: Follower
    every_s: int
    last_at: datetime | None
    items_at: datetime | None  # when the oldest of its waiting items is due
    dropped: int  # items that were dropped, and are not reported yet

    def due_at(self, present: datetime) -> datetime | None:
        """When it gets something that is published now; None: at once."""
        if self.items_at is not None:
            return NOT_NEXT if self.items_at < NOT_NEXT else present
        if self.every_s and self.last_at is not None:
            at = self.last_at + timedelta(seconds=self.every_s)
            return at if at > present else None
        return None


@dataclass(slots=True)
class FollowerCheck:
    """Follows that were locked; one that is in no list is locked by another transaction, or deleted."""

    allowed: list[LockedFollow] = field(default_factory=list)  # may get something
    refused: list[UUID] = field(default_factory=list)  # may not
    unknown: list[LockedFollow] = field(default_factory=list)  # no row and no code of this process has its agent
    undecided: list[LockedFollow] = field(default_factory=list)  # the site's policy raises for its topic

    @property
    def locked(self) -> list[LockedFollow]:
        return [*self.allowed, *self.unknown, *self.undecided]

    @property
    def ids(self) -> set[UUID]:
        return {one.follower.id for one in self.locked}.union(self.refused)


def lock_followers(ids: Sequence[UUID], rights: Rights | None = None) -> FollowerCheck:
    """Lock the follows that no other transaction has locked, and check which may get a message."""
    active = owner_is_active()
    # Where users have no such column, the topic takes its place in the row.
    names = ("id", "agent", "owner_id", "tenant", "session_id", "home_id", "every_s", "last_at", "topic", "dropped")
    rows: Any = Follow.objects.filter(id__in=ids).order_by("id")
    rows = rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    follows = list(rows.values_list(*names, active or "topic"))
    waiting = oldest_due([row[0] for row in follows])  # read after the lock
    agents = _agents({row[1] for row in follows})
    versions, disabled = _versions(agents)
    wanted = {(row[1], row[2], row[8]) for row in follows if row[2] is not None and row[1] in versions}
    refused, failed = _refused(wanted, agents, rights)
    checked, off = FollowerCheck(), Counter[str]()
    for follow_id, agent, owner_id, tenant, session_id, home_id, every_s, last_at, topic, dropped, is_active in follows:
        follower = Follower(follow_id, agent, owner_id, tenant, session_id, session_id or home_id, versions.get(agent))
        one = LockedFollow(follower, every_s, last_at, waiting.get(follow_id), dropped)
        if owner_id is not None and active and not is_active:
            checked.refused.append(follow_id)
        elif owner_id is not None and topic in failed:
            checked.undecided.append(one)
        elif agent in disabled or (agent, owner_id, topic) in refused:
            checked.refused.append(follow_id)
            off.update([agent] if agent in disabled else ())
        else:
            (checked.allowed if agent in versions else checked.unknown).append(one)
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
    return checked


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
    return {address: Agent(address=address) for address in addresses if address in registry._agents} | rows


def _versions(agents: Mapping[str, Agent]) -> tuple[dict[str, int | None], set[str]]:
    """The enabled agents, each with the version of its spec if it is a row; and the disabled ones."""
    versions: dict[str, int | None] = {}
    for address, row in agents.items():
        if row.enabled:
            is_row = row.source == Agent.Source.ADMIN and address not in registry._agents
            versions[address] = row.version if is_row else None
    return versions, set(agents).difference(versions)


def _is_open(agent: Agent) -> bool:
    """Whether every user may run it, by its `access`."""
    is_here = agent.address in registry._agents
    return (registry.access_of(agent.address) if is_here else agent.access) == EVERY_USER


def _refused(
    wanted: set[Wanted], agents: Mapping[str, Agent], rights: Rights | None
) -> tuple[set[Wanted], dict[str, Exception]]:
    if rights is not None and rights.by_access:
        closed = {address for address, agent in agents.items() if not _is_open(agent)}
        wanted = {one for one in wanted if one[0] in closed}
    if rights is None or not wanted:
        return set(), {}
    return rights.refused(wanted, agents)
