"""Who may write a run: what a claim gives, which runs can be claimed, and the heartbeats that move the expiry."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import OperationalError
from django.db.models import Q, QuerySet

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Recorded, internalize
from ravi_django.runtime.store import postgres
from ravi_django.runtime.store.inboxes import Inbox, of_generation

LOCK_S = 0.25  # how long a heartbeat waits for one locked row


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one run, until another claim raises the epoch."""

    run: Run  # the row as claimed
    epoch: int
    owner: str
    asked_at: float = field(default_factory=time.monotonic, compare=False)  # before the claim was sent, in seconds
    expired_at: datetime | None = None  # the end of the lost lease that this one follows
    reserved: set[str] = field(default_factory=set, compare=False)  # calls that may hold a part of a budget

    @property
    def run_id(self) -> UUID:
        return self.run.id


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a lease starts from."""

    journal: list[Recorded]  # this generation, in seq order
    unread: Inbox


def claimable() -> Q:
    """Pending and due, suspended until a time that has passed, or running under an expired lease."""
    now = clock.now()
    pending = Q(status=Status.PENDING) & _due()
    timed = Q(status=Status.SUSPENDED, wake_at__lte=now)
    return ((pending | timed) & _may_go_on()) | Q(status=Status.RUNNING, lease_expires_at__lt=now)


def _may_go_on() -> Q:
    """It is not paused; a paused run that is to be cancelled has to learn of it."""
    return Q(paused_at=None) | Q(cancel_requested_at__isnull=False)


def _due() -> Q:
    """Its time has come; a run that waits for a worker of a release need not wait for anything else there."""
    due = Q(wake_at__isnull=True) | Q(wake_at__lte=clock.now())
    return due | Q(for_release=conf.RELEASE) if conf.RELEASE else due


def ready() -> QuerySet[Run]:
    """Pending runs that are due, in the order of `claim_at`."""
    return Run.objects.filter(_due(), _may_go_on(), status=Status.PENDING).order_by("claim_at", "id")


def timed() -> QuerySet[Run]:
    """Suspended runs whose time has come, the longest overdue first."""
    return Run.objects.filter(_may_go_on(), status=Status.SUSPENDED, wake_at__lte=clock.now()).order_by("wake_at")


def expired() -> QuerySet[Run]:
    """Running runs whose lease is over: their worker is gone, or has let go."""
    return Run.objects.filter(status=Status.RUNNING, lease_expires_at__lt=clock.now()).order_by("lease_expires_at")


def skip_locked(rows: QuerySet[Run]) -> QuerySet[Run]:
    """Where the database has it; SQLite silently ignores it. A transaction that signals a run does not lock it."""
    if connection.features.has_select_for_update_skip_locked:
        return rows.select_for_update(skip_locked=True, no_key=True, of=("self",))
    return rows


def load(lease: Lease, limit: int | None = None) -> Loaded:
    """The journal in one query, the inbox in another; a run's first lease has no journal to read. With a `limit` so
    many messages of a backlog, behind those that the journal has."""
    journal: list[Recorded] = []
    if lease.epoch > 1:
        journal = [Recorded(*row) for row in _rows(lease.run)]
        internalize(journal)
    return Loaded(journal, of_generation(lease.run, 0 if limit is None else _seen(journal), limit))


def _seen(journal: Iterable[Recorded]) -> int:
    """The last message that the code was given, as far as it is recorded."""
    noted = [row.result for row in journal if row.path.startswith("@") and isinstance(row.result, dict)]
    rounds = [result.get("inbox_upto") or 0 for result in noted]
    return max([row.inbox_upto or 0 for row in journal] + rounds, default=0)


def _rows(run: Run) -> Iterable[Sequence[Any]]:
    if not postgres.in_use():
        rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation)
        return rows.order_by("seq").values_list(*Recorded.FIELDS)
    names = ", ".join(Recorded.FIELDS)
    found = postgres.execute(
        f"SELECT {names} FROM ravi_journalentry"  # noqa: S608 - the names of our own columns
        " WHERE run_id = %s::uuid AND generation = %s::int ORDER BY seq",
        [str(run.id), str(run.generation)],
    )
    return (postgres.decoded(row, _JSON) for row in found)


_JSON = [place for place, name in enumerate(Recorded.FIELDS) if name in ("request", "digests", "result", "error")]


def abandon(lease: Lease) -> None:
    """Leave the lease to run out as one of a dead worker."""
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner, status=Status.RUNNING)
    held.update(lease_owner=f"{lease.owner[:190]} failed")


def heartbeat(
    owner: str, leases: Sequence[tuple[UUID, int]], seen: Mapping[UUID, int] | None = None
) -> dict[UUID, str]:
    """Renew all leases of a process in one UPDATE; says "ok", "cancel", "paused" or "lost" for each, and "woken" for
    those with a wake-up after the one `seen`.

    One slow transaction must not cost the others their leases: rows that somebody has locked are skipped, and waited
    for afterwards, one by one in the given order. Those that stay locked read "unknown". After half a beat the rest
    reads "unreached", and should come first in the next.
    """
    held = Run.objects.filter(id__in=[run_id for run_id, _ in leases], lease_owner=owner, status=Status.RUNNING)
    with transaction.atomic():
        rows = _renew(skip_locked(held.order_by("id")))
    skipped = set()
    if len(rows) < len(leases):
        skipped = set(held.exclude(id__in=list(rows)).values_list("id", flat=True))
    give_up = time.monotonic() + conf.HEARTBEAT_S / 2
    verdicts = {}
    for run_id, epoch in leases:
        try:
            if run_id in skipped and time.monotonic() > give_up:
                verdicts[run_id] = "unreached"
                continue
            if run_id in skipped:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = {int(LOCK_S * 1000)}")
                    rows |= _renew(held.filter(id=run_id).select_for_update(no_key=True))
            verdicts[run_id] = _verdict(rows.get(run_id), epoch, (seen or {}).get(run_id))
        except OperationalError:
            verdicts[run_id] = "unknown"
    return verdicts


def _renew(held: QuerySet[Run]) -> dict[UUID, tuple[Any, ...]]:
    columns = ("lease_epoch", "cancel_requested_at", "paused_at", "wake_seq")
    rows = {run_id: row for run_id, *row in held.values_list("id", *columns)}
    Run.objects.filter(id__in=list(rows)).update(lease_expires_at=clock.after(conf.LEASE_S))
    return rows


def _verdict(row: Sequence[Any] | None, epoch: int, seen: int | None) -> str:
    mine, cancel, paused, woken = row or (None, None, None, 0)
    if mine != epoch:
        return "lost"
    if cancel:
        return "cancel"
    if paused:
        return "paused"
    return "ok" if seen is None or woken <= seen else "woken"
