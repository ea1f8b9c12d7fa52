"""Give many followers a message each, in the caller's transaction: a live run gets it, an idle agent gets a new run.

Nothing here waits for a lock: a run, session or follow that somebody else holds is left for later. So a fan-out blocks
nobody and cannot deadlock. Runs are locked in the order of their ids, then sessions. What was read before is read again
in a statement after its lock.

A follower has one home conversation for all its topics, though several fan-outs may reach it at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self
from uuid import UUID

from django.db import DatabaseError, OperationalError
from django.db.models import Count, Exists, OuterRef, QuerySet, Subquery, TextField, UUIDField
from django.db.models.functions import Cast

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.models import ACTIVE, Follow, Run, Session, Signal, Status, uuid7
from ravi_django.runtime.db import clock
from ravi_django.runtime.social import delivery_rows
from ravi_django.runtime.social.delivery_rows import SIGNAL, Begun, Letter, Told

APART = 64  # followers of one delivery that are found out one by one; the rest of those that fail is for later


class Follower(NamedTuple):
    """A follow whose row is locked, and the version of its agent's spec that a new run is made with."""

    id: UUID
    agent: str
    owner_id: Any
    tenant: str
    session_id: UUID | None  # where it is of one conversation alone
    home_id: UUID | None
    version: int | None


class UnknownAgent(Exception):
    """Of a follower that no process is known to run, as yet."""

    def __str__(self) -> str:
        return f"agent {self.args[0]} is not known to this process, and has no row; it is looked for again"


@dataclass(frozen=True, slots=True)
class Due:
    """What one follower is to be given."""

    follower: Follower
    letter: Letter


@dataclass(slots=True)
class Delivered:
    """What has come of it, by the ids of the follows."""

    given: list[UUID] = field(default_factory=list)
    full: list[UUID] = field(default_factory=list)  # has RAVI["FEED_UNREAD"] unread
    busy: list[UUID] = field(default_factory=list)  # what it needs is locked, or has just changed
    own: list[UUID] = field(default_factory=list)  # would have been told what it has said itself
    resting: dict[UUID, datetime] = field(default_factory=dict)  # its last run has failed: until when it gets no other
    failed: dict[UUID, Exception] = field(default_factory=dict)
    woken: list[UUID] = field(default_factory=list)  # runs that can be claimed now

    def and_of(self, other: Self) -> Self:
        self.given += other.given
        self.full += other.full
        self.busy += other.busy
        self.own += other.own
        self.resting |= other.resting
        self.failed |= other.failed
        self.woken += other.woken
        return self


def deliver(dues: Sequence[Due]) -> Delivered:
    """Deliver to all of them. Whose rows make an error is found by halves, so that it fails alone."""
    return _deliver(dues, [APART])


def _deliver(dues: Sequence[Due], apart: list[int]) -> Delivered:
    if not dues:
        return Delivered()
    try:
        with transaction.atomic():
            found = _deliver_at_once(dues)
            if connection.vendor == "postgresql":
                connection.check_constraints()  # here, where it can be told whose fault it is, not at the commit
            return found
    except OperationalError:
        raise  # of the database, not of these rows
    except DatabaseError as error:
        if len(dues) == 1 or not apart[0]:
            apart[0] = max(0, apart[0] - 1)
            return Delivered(failed=dict.fromkeys((due.follower.id for due in dues), error))
    half = len(dues) // 2
    return _deliver(dues[:half], apart).and_of(_deliver(dues[half:], apart))


def _deliver_at_once(dues: Sequence[Due]) -> Delivered:
    found = Delivered()
    lost = of_homeless([due.follower.id for due in dues if due.follower.home_id is None])
    found.busy += lost.busy
    live, idle = _targets(_at_their_homes(dues, lost))
    told = _still_live(live, found)
    begun = _places(idle, found)
    found.woken = [*delivery_rows.tell(told), *delivery_rows.begin(begun)]
    noted = [(one.follow_id, one.session_id) for one in told] + [(one.follow_id, one.session_id) for one in begun]
    delivery_rows.note_delivered(noted)
    firsts = ((lost.first.get(follow_id, follow_id), follow_id, home) for follow_id, home in noted)
    settle((first, home) for first, follow_id, home in firsts if first != follow_id)
    found.given = [follow_id for follow_id, _ in noted]
    return found


def _at_their_homes(dues: Sequence[Due], lost: Homes) -> list[Due]:
    """Those who have a home at another of their follows are at home there; who is being given one is left out."""
    busy = set(lost.busy)
    return [
        replace(due, follower=due.follower._replace(home_id=lost.known[due.follower.id]))
        if due.follower.id in lost.known
        else due
        for due in dues
        if due.follower.id not in busy
    ]


# ------------------------------------------------------------------------------------------------- the live runs


def _targets(dues: Sequence[Due]) -> tuple[list[tuple[Due, UUID]], list[Due]]:
    """The run that each is to be told by, as it seems without a lock; and those that have none."""
    runs = _at_home(dues, ACTIVE)
    runs |= _at_home([due for due in dues if due.follower.id not in runs], [Status.QUEUED])
    runs |= _waiting([due.follower for due in dues if due.follower.id not in runs and due.follower.session_id is None])
    live = [(due, runs[due.follower.id]) for due in dues if due.follower.id in runs]
    return live, [due for due in dues if due.follower.id not in runs]


def _at_home(dues: Sequence[Due], statuses: Sequence[Status]) -> dict[UUID, UUID]:
    """The follower's own run in its home. A queued one is somebody's who stands behind a run of another owner."""
    settled = [due.follower for due in dues if due.follower.home_id is not None]
    rows = _roots_in({one.home_id for one in settled}, {one.agent for one in settled}, statuses)
    here = {row[1:]: row[0] for row in rows}
    found = {one.id: here.get((one.home_id, one.agent, one.owner_id, one.tenant)) for one in settled}
    return {follow_id: run_id for follow_id, run_id in found.items() if run_id is not None}


def _roots_in(places: Iterable[Any], agents: Iterable[str], statuses: Sequence[Status]) -> Iterable[tuple[Any, ...]]:
    places = list(places)
    if not places:
        return ()
    rows = Run.objects.filter(session_id__in=places, agent__in=list(agents), parent=None, status__in=statuses)
    return rows.order_by("-id").values_list("id", "session_id", "agent", "owner_id", "tenant")  # the oldest counts


def _waiting(followers: Sequence[Follower]) -> dict[UUID, UUID]:
    """The newest run of the agent and its owner that waits for a feed's items, wherever it is."""
    found: dict[UUID, UUID] = {}
    for owned in (True, False):
        ids = [one.id for one in followers if (one.owner_id is not None) is owned]
        if ids:
            runs = _newest_waiting(OuterRef("owner_id") if owned else None)
            rows = Follow.objects.filter(id__in=ids).annotate(run=Subquery(runs)).filter(run__isnull=False)
            found |= dict(rows.values_list("id", "run"))
    return found


def _newest_waiting(owner: Any) -> QuerySet[Run, Any]:
    rows = Run.objects.filter(
        agent=OuterRef("agent"), owner_id=owner, tenant=OuterRef("tenant"), parent=None, status=Status.SUSPENDED
    )
    if connection.features.supports_json_field_contains:
        rows = rows.filter(waiting_on__contains=[{"kind": "signal", "name": SIGNAL}])
    else:
        rows = rows.annotate(waits=Cast("waiting_on", TextField())).filter(waits__contains=f'"{SIGNAL}"')
    return rows.order_by("-id").values("id")[:1]


def _still_live(live: Sequence[tuple[Due, UUID]], found: Delivered) -> list[Told]:
    """Lock the runs, and leave out those that somebody else has, that have ended, or that have enough unread."""
    ids = sorted({run_id for _, run_id in live})
    if not ids:
        return []
    rows = Run.objects.filter(id__in=ids).order_by("id").select_for_update(skip_locked=True, no_key=True)
    held = {row[0]: row[1:] for row in rows.values_list("id", "status", "agent", "session_id")}
    full = _with_enough(list(held))
    told = []
    for due, run_id in live:
        status, agent, session_id = held.get(run_id, ("", "", None))
        if run_id == due.letter.by:
            found.own.append(due.follower.id)
        elif agent != due.follower.agent or status not in (*ACTIVE, Status.QUEUED):
            found.busy.append(due.follower.id)
        elif run_id in full:
            found.full.append(due.follower.id)
        else:
            told.append(Told(due.follower.id, due.letter, run_id, session_id))
    return told


def _with_enough(ids: list[UUID]) -> set[UUID]:
    unread = Signal.objects.filter(run_id__in=ids, name=SIGNAL, consumed_at=None).order_by()
    many = unread.values("run_id").annotate(count=Count("id")).filter(count__gte=conf.FEED_UNREAD)
    return set(many.values_list("run_id", flat=True))


# ------------------------------------------------------------------------------------------------- the new runs


def _places(idle: Sequence[Due], found: Delivered) -> list[Begun]:
    """Where the runs of idle agents begin: in the follower's home, whose lock is had, or in a session of their own."""
    wanted = sorted({due.follower.home_id for due in idle if due.follower.home_id is not None})
    held: set[UUID] = set()
    rests: dict[tuple[Any, ...], datetime] = {}
    taken: dict[tuple[Any, str], list[Any]] = {}  # home and agent: the owner and tenant of the run there
    if wanted:
        rows = Session.objects.filter(id__in=wanted).order_by("id").select_for_update(skip_locked=True, no_key=True)
        held = set(rows.values_list("id", flat=True))
        active = _roots_in(held, {due.follower.agent for due in idle}, ACTIVE)
        taken = {(session_id, agent): whose for _, session_id, agent, *whose in active}
        rests = dict(resting_homes(held))
    begun = []
    for due in idle:
        one = due.follower
        place = (one.home_id, one.agent)
        if one.home_id is not None and (one.home_id not in held or taken.get(place) == [one.owner_id, one.tenant]):
            found.busy.append(one.id)  # a run that has just begun there is to be told
            continue
        if (until := rests.get((*place, one.owner_id, one.tenant))) is not None:
            found.resting[one.id] = until
            continue
        status = Status.QUEUED if place in taken else Status.PENDING  # behind somebody else's
        if one.home_id is not None:
            taken[place] = [one.owner_id, one.tenant]
        begun.append(
            Begun(one.id, due.letter, uuid7(), one.home_id or uuid7(), one.home_id is None, status, one.version)
        )
    return begun


REST_S = 300.0  # from a failure of the follower's run until it is given another


@dataclass(slots=True)
class Homes:
    """What was found of follows without a home, by their ids."""

    known: dict[UUID, UUID] = field(default_factory=dict)  # where another follow of the same follower is at home
    first: dict[UUID, UUID] = field(default_factory=dict)  # ours to give one: the follower's first follow, locked
    busy: list[UUID] = field(default_factory=list)  # somebody else may be giving them one right now


def of_homeless(ids: Sequence[UUID]) -> Homes:
    """The first follow of a follower stands for it: whoever has that row gives the follower its home. The rows of
    these follows are locked already."""
    homes = Homes()
    if not ids:
        return homes
    rows = _look(ids)
    others = sorted({first for _, _, first, _ in rows}.difference(ids))
    if others:
        locks = Follow.objects.filter(id__in=others).order_by("id").select_for_update(skip_locked=True, no_key=True)
        held = set(locks.values_list("id", flat=True)).union(ids)
        rows = _look(ids)  # what was committed until we had the lock
    else:
        held = set(ids)
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


def _look(ids: Sequence[UUID]) -> list[Any]:
    same = Follow.objects.filter(follower=OuterRef("follower")).order_by("id")
    rows = Follow.objects.filter(id__in=ids).annotate(
        first=Subquery(same.values("id")[:1]),
        known=Subquery(same.filter(home__isnull=False).values("home_id")[:1], output_field=UUIDField()),
    )
    return list(rows.order_by("id").values_list("id", "follower", "first", "known"))


def settle(homes: Iterable[tuple[UUID, UUID]]) -> None:
    """Note the home of followers at their first follow as well, for their other follows to find."""
    moved = [Follow(id=follow_id, home_id=session_id) for follow_id, session_id in homes]
    if moved:
        Follow.objects.bulk_update(moved, ["home_id"], batch_size=500)


def resting_homes(homes: Iterable[UUID]) -> dict[tuple[UUID, str, Any, str], datetime]:
    """Whose last run in these homes has just failed (home, agent, owner and tenant), and until when they rest."""
    newer = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, id__gt=OuterRef("id")
    )
    rows: QuerySet[Any, Any] = Run.objects.filter(
        session_id__in=list(homes), parent=None, status=Status.FAILED, finished_at__gt=clock.after(-REST_S)
    )
    last: Any = rows.filter(~Exists(newer)).values_list("session_id", "agent", "owner_id", "tenant", "finished_at")
    return {row[:4]: row[4] + timedelta(seconds=REST_S) for row in last}
