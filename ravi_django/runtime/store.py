"""The only writer of run state. Synchronous, small functions, each one transaction, all times by the database.

A worker's writes carry (run, epoch) and must match one row: zero rows raise LeaseLostError and nothing is recorded.
Transactions over several rows lock run first, then session. READ COMMITTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Case, Exists, F, IntegerField, OuterRef, Q, QuerySet, When
from django.db.models.functions import Coalesce

from ravi_django.conf import conf
from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import (
    ACTIVE,
    TERMINAL,
    Blob,
    InboxMessage,
    JournalEntry,
    Run,
    Session,
    Status,
    SweepState,
    WorkerProcess,
)
from ravi_django.runtime import append as appending
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn, Recorded, externalize, internalize, journal_row


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one run, until another claim raises the epoch."""

    run: Run  # the row as claimed
    epoch: int
    owner: str

    @property
    def run_id(self) -> UUID:
        return self.run.id


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a lease starts from."""

    journal: list[Recorded]  # this generation, in seq order
    inbox: list[tuple[int, dict[str, Any]]]  # (id, message), oldest first


# --------------------------------------------------------------------------------------------------- submit


def create_run(run: Run, message: dict[str, Any]) -> Run:
    """Write a run and its first message in the caller's transaction. A root run whose session has an active run of
    the same agent is queued behind it."""
    with transaction.atomic():
        _lock_session(run)
        if run.parent_id is None and _active_root(run).exists():
            run.status = Status.QUEUED
        _stamp(run).save(force_insert=True)
        Session.objects.filter(id=run.session_id).update(agent=run.agent, updated_at=clock.now())
        InboxMessage.objects.create(run=run, message_id=message["id"], body=message)
        run.refresh_from_db(fields=["created_at"])
    return run


def create_session(session: Session) -> Session:
    """Write a conversation's row; its times are the database's."""
    _stamp(session).save(force_insert=True)
    return session


def _stamp(row: Any) -> Any:
    if (present := clock.fixed()) is not None:
        row.created_at = present
    return row


def _lock_session(run: Run) -> None:
    Session.objects.select_for_update().filter(id=run.session_id).values_list("id").get()


def _active_root(run: Run) -> QuerySet[Run]:
    return Run.objects.filter(session_id=run.session_id, agent=run.agent, parent=None, status__in=ACTIVE)


# ---------------------------------------------------------------------------------------------------- claim


def claimable() -> Q:
    """Pending and due, or running under an expired lease."""
    due = Q(wake_at__isnull=True) | Q(wake_at__lte=clock.now())
    return (Q(status=Status.PENDING) & due) | Q(status=Status.RUNNING, lease_expires_at__lt=clock.now())


def claim(run_id: UUID | str, owner: str, agents: Iterable[str] | None = None) -> Lease | None:
    """Take the lease of a claimable run of one of these agents (None: any); None when somebody else has it or there
    is nothing to do."""
    known = {} if agents is None else {"agent__in": list(agents)}
    with transaction.atomic():
        taken = Run.objects.filter(claimable(), id=run_id, **known).update(
            status=Status.RUNNING,
            lease_owner=owner,
            lease_expires_at=clock.after(conf.LEASE_S),
            lease_epoch=F("lease_epoch") + 1,
            crashes=F("crashes") + Case(When(status=Status.RUNNING, then=1), default=0, output_field=IntegerField()),
            started_at=Coalesce("started_at", clock.now()),
            wake_at=None,
            hints=0,
            hint_after=None,
            release=conf.RELEASE,
        )
        if not taken:
            return None
        run = Run.objects.select_related("session").get(id=run_id)
        if run.parent_id is not None:  # rare, and dear: two more rows as wide as the run's
            run = Run.objects.select_related("session", "root", "parent").get(id=run_id)
    return Lease(run=run, epoch=run.lease_epoch, owner=owner)


def claim_next(owner: str, agents: Iterable[str]) -> Lease | None:
    """Take the most urgent claimable run of these agents, one that is ready before one whose worker died. SKIP LOCKED
    only spares waiting; `claim` is the guard."""
    known = list(agents)
    with transaction.atomic():
        for part in (ready(), expired()):
            run_id = _skip_locked(part.filter(agent__in=known)).values_list("id", flat=True).first()
            if run_id is not None and (lease := claim(run_id, owner)) is not None:
                return lease
    return None


def ready() -> QuerySet[Run]:
    """Pending runs that are due, the most urgent first."""
    due = Q(wake_at__isnull=True) | Q(wake_at__lte=clock.now())
    return Run.objects.filter(due, status=Status.PENDING).order_by("-priority", "id")


def expired() -> QuerySet[Run]:
    """Running runs whose lease is over: their worker is gone, or has let go."""
    return Run.objects.filter(status=Status.RUNNING, lease_expires_at__lt=clock.now()).order_by("lease_expires_at")


def _skip_locked(rows: QuerySet[Run]) -> QuerySet[Run]:
    """Where the database has it; SQLite silently ignores it."""
    if connection.features.has_select_for_update_skip_locked:
        return rows.select_for_update(skip_locked=True, of=("self",))
    return rows


def load(lease: Lease) -> Loaded:
    """The journal in one query, the inbox in another; a run's first lease has no journal to read."""
    journal: list[Recorded] = []
    if lease.epoch > 1:
        rows = JournalEntry.objects.filter(run_id=lease.run_id, generation=lease.run.generation)
        journal = [Recorded(*row) for row in rows.order_by("seq").values_list(*Recorded.FIELDS)]
        internalize(journal)
    inbox = InboxMessage.objects.filter(run_id=lease.run_id).order_by("id").values_list("id", "body")
    return Loaded(journal=journal, inbox=list(inbox))


def heartbeat(owner: str, leases: Sequence[tuple[UUID, int]]) -> dict[UUID, str]:
    """Renew all leases of a process in one UPDATE; says "ok", "cancel" or "lost" for each.

    A row that somebody else has locked is left for the next beat, and reads "unknown": one slow transaction must not
    cost the others their leases.
    """
    ids = [run_id for run_id, _ in leases]
    held = Run.objects.filter(id__in=ids, lease_owner=owner, status=Status.RUNNING)
    columns = ("id", "lease_epoch", "cancel_requested_at")
    with transaction.atomic():
        free = {row[0]: row[1:] for row in _skip_locked(held.order_by("id")).values_list(*columns)}
        Run.objects.filter(id__in=list(free)).update(lease_expires_at=clock.after(conf.LEASE_S))
        locked = {}
        if len(free) < len(ids):
            locked = {row[0]: row[1:] for row in held.exclude(id__in=list(free)).values_list(*columns)}
    verdicts = {}
    for run_id, epoch in leases:
        mine, cancel = free.get(run_id) or locked.get(run_id) or (None, None)
        if mine != epoch:
            verdicts[run_id] = "lost"
        elif run_id in locked:
            verdicts[run_id] = "unknown"
        else:
            verdicts[run_id] = "cancel" if cancel else "ok"
    return verdicts


# --------------------------------------------------------------------------------------------------- append


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
    """Record effects under the lease, in one commit; returns the seq of the first row."""
    _store_big_values(entries)
    return appending.append(lease, entries, turns)


def already_appended(entry_id: UUID) -> int | None:
    """The seq of a row that an append with a lost answer did write."""
    return JournalEntry.objects.filter(id=entry_id).values_list("seq", flat=True).first()


def _store_big_values(entries: Sequence[Entry]) -> None:
    """Blobs are content-addressed: writing them first leaves at worst an unused one for the prune."""
    for entry in entries:
        if blobs := externalize(entry):
            save_blobs(blobs)


def save_blobs(blobs: Sequence[Blob]) -> None:
    Blob.objects.bulk_create(blobs, ignore_conflicts=True)


# --------------------------------------------------------------------------------------------------- settle


def finish(
    lease: Lease,
    status: Status,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    output: str | None = None,
    error: dict[str, Any] | None = None,
) -> tuple[int, UUID | None]:
    """End the run under its lease and promote the next queued run of its session.

    Returns the seq of the first row written, and the id of the promoted run.
    """
    _store_big_values(entries)
    with transaction.atomic():
        first = appending.append_in_transaction(
            lease,
            entries,
            turns,
            status=status,
            output=output,
            error=error,
            finished_at=clock.now(),
            waiting_on=None,
            **_RELEASED,
        )
        return first, _promote(lease.run)


def block(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, error: dict[str, Any]) -> int:
    """Set the run aside for an operator, under its lease; returns the seq of the first row written."""
    _store_big_values(entries)
    with transaction.atomic():
        return appending.append_in_transaction(lease, entries, turns, status=Status.BLOCKED, error=error, **_RELEASED)


def requeue(
    lease: Lease,
    entries: Sequence[Entry] = (),
    turns: Sequence[NewTurn] = (),
    *,
    delay_s: float = 0.0,
    attempts: int | None = None,
) -> int:
    """Give the run back as pending: after a transient error, or because the worker drains. No crash is counted.

    Returns the seq of the first row written.
    """
    changes: dict[str, Any] = {} if attempts is None else {"attempts": attempts}
    _store_big_values(entries)
    with transaction.atomic():
        return appending.append_in_transaction(
            lease,
            entries,
            turns,
            status=Status.PENDING,
            wake_at=clock.after(delay_s) if delay_s > 0 else None,
            **changes,
            **_RELEASED,
        )


_RELEASED: dict[str, Any] = {"lease_owner": "", "lease_expires_at": None}


def _promote(run: Run) -> UUID | None:
    """The session's next queued run of this agent becomes pending. Under the session's lock, as `create_run`."""
    if run.parent_id is not None:
        return None
    _lock_session(run)
    queued = Run.objects.filter(session_id=run.session_id, agent=run.agent, parent=None, status=Status.QUEUED)
    next_id: UUID | None = queued.order_by("id").values_list("id", flat=True).first()
    if next_id is None or _active_root(run).exists():
        return None
    Run.objects.filter(id=next_id, status=Status.QUEUED).update(status=Status.PENDING)
    return next_id


# --------------------------------------------------------------------------------------------------- cancel


def request_cancel(run_id: UUID | str, reason: str) -> UUID | None:
    """Ask for cancellation: at once when nobody holds the lease, else the holder is told by its next heartbeat.

    Returns the id of a run promoted by it. Raises IllegalTransitionError when the run has ended.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(id=run_id)
        if run.status in TERMINAL:
            raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
        Run.objects.filter(id=run.id).update(cancel_requested_at=clock.now(), cancel_reason=reason[:200])
        if run.status == Status.RUNNING:
            return None
        return _end_unleased(run, Status.CANCELLED, {"type": "Cancelled", "message": reason})


def _end_unleased(run: Run, status: Status, error: dict[str, Any]) -> UUID | None:
    """End a locked run that nobody leases: the epoch rises, and its row is written under the new one."""
    entry = Entry(kind=f"run.{status}", path=f"@{status}.{run.lease_epoch + 1}", error=error)
    Run.objects.filter(id=run.id).update(
        status=status,
        error=error,
        lease_epoch=F("lease_epoch") + 1,
        next_seq=F("next_seq") + 1,
        finished_at=clock.now(),
        waiting_on=None,
        **_RELEASED,
    )
    journal_row(
        entry,
        run_id=run.id,
        seq=run.next_seq,
        generation=run.generation,
        epoch=run.lease_epoch + 1,
        now=clock.now(),
        start=clock.now(),
    ).save(force_insert=True)
    return _promote(run) if run.status != Status.QUEUED else None


# --------------------------------------------------------------------------------------------------- stream


def raise_event_mark(tree_id: UUID | str, above: int) -> int:
    """Reserve event numbers ahead of use, so that a lost buffer never leads to a number used twice."""
    Run.objects.filter(id=tree_id, event_mark__lt=above).update(event_mark=above)
    return int(Run.objects.values_list("event_mark", flat=True).get(id=tree_id))


def mark_published(tree_id: UUID | str, archive: Blob | None) -> None:
    """The end of the tree's stream is out; its frames, without the single tokens, are kept."""
    with transaction.atomic():
        if archive is not None:
            save_blobs([archive])
        Run.objects.filter(id=tree_id).update(published_at=clock.now(), archive=archive)


# -------------------------------------------------------------------------------------------------- processes


def worker_seen(name: str, runs: int) -> None:
    """A worker process is alive."""
    WorkerProcess.objects.update_or_create(
        name=name,
        defaults={"seen_at": clock.now(), "runs": runs, "release": conf.RELEASE},
        create_defaults={"seen_at": clock.now(), "runs": runs, "release": conf.RELEASE, "started_at": clock.now()},
    )


def worker_gone(name: str) -> None:
    WorkerProcess.objects.filter(name=name).delete()


def forget_dead_workers(older_than_s: float) -> None:
    WorkerProcess.objects.filter(seen_at__lt=clock.after(-older_than_s)).delete()


def swept() -> None:
    """A sweep came to its end."""
    SweepState.objects.update_or_create(id=1, defaults={"ran_at": clock.now()})


# ---------------------------------------------------------------------------------------------------- sweep


def due_for_hint(limit: int) -> list[UUID]:
    """Claimable runs that no hint has reached, expired leases first; each is backed off, so that a run which nobody
    can take does not fill every batch."""
    quiet = Q(hint_after__isnull=True) | Q(hint_after__lte=clock.now())
    with transaction.atomic():
        found: list[tuple[UUID, int]] = []
        for part in (expired(), ready()):
            found += _skip_locked(part.filter(quiet)).values_list("id", "hints")[: limit - len(found)]
        groups: dict[int, list[UUID]] = {}
        for run_id, hints in found:
            groups.setdefault(min(hints, 6), []).append(run_id)
        for hints, ids in groups.items():
            delay = min(conf.SWEEP_S * 2**hints, 300.0)
            Run.objects.filter(id__in=ids).update(hints=F("hints") + 1, hint_after=clock.after(delay))
    return [run_id for run_id, _ in found]


def hint_failed(run_ids: Sequence[UUID]) -> None:
    """No hint went out for these: the next sweep tries again, whatever the backoff."""
    Run.objects.filter(id__in=run_ids, hints__gt=0).update(hints=F("hints") - 1, hint_after=None)


def orphaned() -> QuerySet[Run]:
    """Queued runs whose session has no active run any more."""
    active = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, status__in=ACTIVE
    )
    return Run.objects.filter(~Exists(active), status=Status.QUEUED, parent=None).order_by("id")


def promote_orphans(limit: int) -> list[UUID]:
    """A guard behind the promotion in `finish`: finds nothing unless a promotion was lost."""
    promoted: list[UUID] = []
    for run in orphaned()[:limit]:
        with transaction.atomic():
            if (next_id := _promote(run)) is not None:
                promoted.append(next_id)
    return promoted


def unpublished(limit: int, older_than_s: float) -> list[UUID]:
    """Ended trees whose last frame may not be out."""
    return list(unpublished_trees(older_than_s).values_list("id", flat=True)[:limit])


def unpublished_trees(older_than_s: float) -> QuerySet[Run]:
    rows = Run.objects.filter(published_at=None, parent=None, finished_at__lt=clock.after(-older_than_s))
    return rows.order_by("finished_at")
