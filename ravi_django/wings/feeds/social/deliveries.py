"""Give many followers a message each, in the caller's transaction: a live run gets it, an idle agent gets a new run.

Nothing here waits for a lock: a run, session or follow that another transaction has locked is left for later. So a
fan-out blocks no other transaction and cannot deadlock. Runs are locked in the order of their ids, then sessions. Rows
that were read before a lock are read again after it.

A follower has one home conversation for all its topics, even when several fan-outs reach it at the same moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, OperationalError
from django.db.models import Count, Exists, F, OuterRef, QuerySet, Subquery, TextField, UUIDField
from django.db.models.functions import Cast

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock
from ravi_django.models import ACTIVE, Follow, InboxMessage, Run, Session, Status, uuid7
from ravi_django.wings.feeds.social import delivery_rows
from ravi_django.wings.feeds.social.delivery_rows import SIGNAL, FollowerMessage, ToLive, ToNew

REST_S = 300.0  # from a failure of the follower's run until it gets another


class Follower(NamedTuple):
    """A follow whose row is locked."""

    id: UUID
    agent: str
    owner_id: Any
    tenant: str
    session_id: UUID | None  # set when it follows for one conversation alone
    home_id: UUID | None
    version: int | None  # of the agent's spec, for a new run


class UnknownAgent(Exception):
    def __str__(self) -> str:
        return f"agent {self.args[0]} is not known to this process, and has no row; it is looked for again"


@dataclass(frozen=True, slots=True)
class Delivery:
    follower: Follower
    message: FollowerMessage


@dataclass(slots=True)
class DeliveryResult:
    """The results, by the ids of the follows."""

    delivered: list[UUID] = field(default_factory=list)
    busy: list[UUID] = field(default_factory=list)  # a row that it needs is locked, or has just changed
    later: list[UUID] = field(default_factory=list)  # RAVI["FEED_UNREAD"] are unread, or its last run has failed
    publishers: list[UUID] = field(default_factory=list)  # the run that published it: it does not get it back
    failed: dict[UUID, Exception] = field(default_factory=dict)
    woken: list[UUID] = field(default_factory=list)  # runs that can be claimed now


def deliver(deliveries: Sequence[Delivery]) -> DeliveryResult:
    """Deliver to all of them at once; after an error to each alone, so that the others are delivered."""
    result, parts = DeliveryResult(), [deliveries] if deliveries else []
    while parts:
        part = parts.pop()
        try:
            with transaction.atomic():
                done = _deliver_at_once(part)
                if connection.vendor == "postgresql":
                    connection.check_constraints()  # at the commit, nothing would say which row is wrong
        except OperationalError:
            raise  # of the database, not of these rows
        except DatabaseError as error:
            if len(part) == 1:
                result.failed[part[0].follower.id] = error
            else:
                parts = [[delivery] for delivery in reversed(part)]
        else:
            result.delivered += done.delivered
            result.busy += done.busy
            result.later += done.later
            result.publishers += done.publishers
            result.woken += done.woken
    return result


def _deliver_at_once(deliveries: Sequence[Delivery]) -> DeliveryResult:
    result = DeliveryResult()
    homes = choose_homes([one.follower.id for one in deliveries if one.follower.home_id is None])
    result.busy += homes.busy
    live, idle = _targets(_with_homes(deliveries, homes))
    to_live = _still_live(live, result)
    to_new = _new_runs(idle, result)
    result.woken = [*delivery_rows.to_live_runs(to_live), *delivery_rows.to_new_runs(to_new)]
    session_ids = {one.follow_id: one.session_id for one in to_live} | {one.follow_id: one.session_id for one in to_new}
    delivery_rows.note_delivered(session_ids)
    firsts = {first: session_ids[follow_id] for follow_id, first in homes.first.items() if follow_id in session_ids}
    moved = [Follow(id=first, home_id=home) for first, home in firsts.items() if first not in session_ids]
    Follow.objects.bulk_update(moved, ["home_id"], batch_size=500)  # where their other follows look for it
    result.delivered = list(session_ids)
    return result


def _with_homes(deliveries: Sequence[Delivery], homes: Homes) -> list[Delivery]:
    """With the home of another follow of the same follower, where there is one; without the busy ones."""
    busy = set(homes.busy)
    return [
        replace(one, follower=one.follower._replace(home_id=homes.known.get(one.follower.id, one.follower.home_id)))
        for one in deliveries
        if one.follower.id not in busy
    ]


def _targets(deliveries: Sequence[Delivery]) -> tuple[list[tuple[Delivery, UUID]], list[Delivery]]:
    """The run that gets each message, as read without a lock; and the deliveries without a run."""
    runs = _runs_in_homes(deliveries, ACTIVE)
    runs |= _runs_in_homes([one for one in deliveries if one.follower.id not in runs], [Status.QUEUED])
    runs |= _waiting(
        [one.follower for one in deliveries if one.follower.id not in runs and one.follower.session_id is None]
    )
    live = [(one, runs[one.follower.id]) for one in deliveries if one.follower.id in runs]
    return live, [one for one in deliveries if one.follower.id not in runs]


def _runs_in_homes(deliveries: Sequence[Delivery], statuses: Sequence[Status]) -> dict[UUID, UUID]:
    """The follower's own run in its home. It is queued when a run of another owner is active there."""
    settled = [one.follower for one in deliveries if one.follower.home_id is not None]
    rows = _roots_in({one.home_id for one in settled}, {one.agent for one in settled}, statuses)
    here = {row[1:]: row[0] for row in rows}
    run_ids = {one.id: here.get((one.home_id, one.agent, one.owner_id, one.tenant)) for one in settled}
    return {follow_id: run_id for follow_id, run_id in run_ids.items() if run_id is not None}


def _roots_in(
    session_ids: Collection[Any], agents: Collection[str], statuses: Sequence[Status]
) -> Iterable[tuple[Any, ...]]:
    rows = Run.objects.filter(session_id__in=session_ids, agent__in=agents, parent=None, status__in=statuses)
    rows = rows.exclude(status=Status.QUEUED, wake_at__isnull=False)  # it starts at its own time
    return rows.order_by("-created_at", "-id").values_list(
        "id", "session_id", "agent", "owner_id", "tenant"
    )  # the oldest counts


def _waiting(followers: Sequence[Follower]) -> dict[UUID, UUID]:
    """The newest run of the agent and its owner that waits for a feed's items, in any session."""
    run_ids: dict[UUID, UUID] = {}
    for owned in (True, False):
        ids = [one.id for one in followers if (one.owner_id is not None) is owned]
        runs = _newest_waiting(OuterRef("owner_id") if owned else None)
        rows = Follow.objects.filter(id__in=ids).annotate(run=Subquery(runs)).filter(run__isnull=False)
        run_ids |= dict(rows.values_list("id", "run"))
    return run_ids


def _newest_waiting(owner: Any) -> QuerySet[Run, Any]:
    rows = Run.objects.filter(
        agent=OuterRef("agent"), owner_id=owner, tenant=OuterRef("tenant"), parent=None, status=Status.SUSPENDED
    )
    if connection.features.supports_json_field_contains:
        rows = rows.filter(waiting_on__contains=[{"kind": "signal", "name": SIGNAL}])
    else:
        rows = rows.annotate(waits=Cast("waiting_on", TextField())).filter(waits__contains=f'"{SIGNAL}"')
    return rows.order_by("-id").values("id")[:1]


def _still_live(live: Sequence[tuple[Delivery, UUID]], result: DeliveryResult) -> list[ToLive]:
    """Lock the runs, and leave out those that are locked, that have ended, or that have enough unread."""
    rows = (
        Run.objects.filter(id__in={run_id for _, run_id in live})
        .order_by("id")
        .select_for_update(skip_locked=True, no_key=True)
    )
    held = {row[0]: row[1:] for row in rows.values_list("id", "status", "agent", "session_id")}
    unread = InboxMessage.objects.filter(run_id__in=held, name=SIGNAL, consumed_at=None, id__gt=F("run__read_upto"))
    counts = unread.order_by().values("run_id").annotate(count=Count("id"))
    full = set(counts.filter(count__gte=conf.FEED_UNREAD).values_list("run_id", flat=True))
    to_live = []
    for delivery, run_id in live:
        status, agent, session_id = held.get(run_id, ("", "", None))
        if run_id == delivery.message.by:
            result.publishers.append(delivery.follower.id)
        elif agent != delivery.follower.agent or status not in (*ACTIVE, Status.QUEUED):
            result.busy.append(delivery.follower.id)
        elif run_id in full:
            result.later.append(delivery.follower.id)
        else:
            to_live.append(ToLive(delivery.follower.id, delivery.message, run_id, session_id))
    return to_live


def _new_runs(idle: Sequence[Delivery], result: DeliveryResult) -> list[ToNew]:
    """Where the runs of idle agents begin: in the follower's home, which is locked then, or in a new session."""
    wanted = {one.follower.home_id for one in idle if one.follower.home_id is not None}
    rows = Session.objects.filter(id__in=wanted).order_by("id").select_for_update(skip_locked=True, no_key=True)
    held = set(rows.values_list("id", flat=True))
    active = _roots_in(held, {one.follower.agent for one in idle}, ACTIVE)
    taken = {(session_id, agent): owner for _, session_id, agent, *owner in active}  # with the tenant
    resting = _resting(held)
    to_new = []
    for delivery in idle:
        one = delivery.follower
        thread = (one.home_id, one.agent)
        if one.home_id is not None and (one.home_id not in held or taken.get(thread) == [one.owner_id, one.tenant]):
            result.busy.append(one.id)  # a run that has just started there gets it
            continue
        if (*thread, one.owner_id, one.tenant) in resting:
            result.later.append(one.id)
            continue
        status = Status.QUEUED if thread in taken else Status.PENDING  # behind another run
        if one.home_id is not None:
            taken[thread] = [one.owner_id, one.tenant]
        to_new.append(
            ToNew(one.id, delivery.message, uuid7(), one.home_id or uuid7(), one.home_id is None, status, one.version)
        )
    return to_new


@dataclass(slots=True)
class Homes:
    """Follows without a home, by their ids."""

    known: dict[UUID, UUID] = field(default_factory=dict)  # the home of another follow of the same follower
    first: dict[UUID, UUID] = field(default_factory=dict)  # the follower's first follow, whose row is locked
    busy: list[UUID] = field(default_factory=list)  # another process may be giving them a home


def choose_homes(ids: Sequence[UUID]) -> Homes:
    """A lock on the follower's first follow is the right to give the follower its home. The rows of these follows are
    locked already."""
    homes = Homes()
    rows = _first_follows(ids)
    held = set(ids)
    if others := {first for _, _, first, _ in rows}.difference(ids):
        locks = Follow.objects.filter(id__in=others).order_by("id").select_for_update(skip_locked=True, no_key=True)
        held.update(locks.values_list("id", flat=True))
        rows = _first_follows(ids)  # what was committed before the lock
    begun = set()
    for follow_id, follower, first, home_id in rows:
        if home_id is not None:
            homes.known[follow_id] = home_id
        elif first not in held or follower in begun:
            homes.busy.append(follow_id)
        else:
            begun.add(follower)
            homes.first[follow_id] = first
    return homes


def _first_follows(ids: Sequence[UUID]) -> list[Any]:
    same = Follow.objects.filter(follower=OuterRef("follower")).order_by("id")
    rows = Follow.objects.filter(id__in=ids).annotate(
        first=Subquery(same.values("id")[:1]),
        known=Subquery(same.filter(home__isnull=False).values("home_id")[:1], output_field=UUIDField()),
    )
    return list(rows.order_by("id").values_list("id", "follower", "first", "known"))


def _resting(homes: Collection[UUID]) -> set[tuple[Any, ...]]:
    """Home, agent, owner and tenant of the last runs in these homes that have failed within REST_S."""
    newer = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, id__gt=OuterRef("id")
    )
    rows = Run.objects.filter(
        ~Exists(newer),
        session_id__in=homes,
        parent=None,
        status=Status.FAILED,
        finished_at__gt=clock.after(-REST_S),
    )
    return set(rows.values_list("session_id", "agent", "owner_id", "tenant"))
