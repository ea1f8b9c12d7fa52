"""Wake runs, and lock several of them in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Case, F, Value, When

from ravi_django.db import transaction
from ravi_django.engine.db import claim_order, clock, postgres
from ravi_django.engine.journal.append import append_rows, store_big_values
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.lease import Lease
from ravi_django.models import Run, Status

T = TypeVar("T")

RELEASED: dict[str, Any] = {
    "lease_owner": "",
    "lease_expires_at": None,
    "for_release": "",
    "model_limit": None,
    "permits": 0,
}


def ready(delay_s: float = 0.0, most: int = claim_order.URGENT) -> dict[str, Any]:
    """The changes that make a run pending, and claimable after `delay_s`. Its priority counts as at most `most`."""
    due = clock.after(delay_s) if delay_s > 0 else None
    claim_at = claim_order.of_row(delay_s, most)
    return {"status": Value(Status.PENDING.value), "wake_at": due, "claim_at": claim_at}


def touch(run_ids: Iterable[UUID]) -> None:
    """Wake runs in any state: a suspended one becomes pending, another one cannot suspend before it has seen this."""
    for run_id in sorted(set(run_ids)):
        if postgres.in_use():
            postgres.execute(_TOUCH, {**claim_order.parameters(), "id": str(run_id)})
        else:
            Run.objects.filter(id=run_id).update(**woken())


def woken(most: int = claim_order.URGENT) -> dict[str, Any]:
    changes = {
        name: Case(When(status=Status.SUSPENDED, then=to), default=F(name)) for name, to in ready(0, most).items()
    }
    return {"wake_seq": F("wake_seq") + 1, "hints": 0, "hint_after": None, **changes}


# The same in SQL. Takes the parameters of `claim_order.parameters`.
_CLAIM_AT = claim_order.in_sql("least(ravi_run.priority, %(most)s::int)")
WOKEN = f"""wake_seq = wake_seq + 1, hints = 0, hint_after = NULL,
  claim_at = CASE WHEN status = 'suspended' THEN {_CLAIM_AT} ELSE claim_at END,
  wake_at = CASE WHEN status = 'suspended' THEN NULL ELSE wake_at END,
  status = CASE WHEN status = 'suspended' THEN 'pending' ELSE status END"""
_TOUCH = f"UPDATE ravi_run SET {WOKEN} WHERE id = %(id)s::uuid RETURNING id"  # noqa: S608


def lock(run_ids: Iterable[UUID]) -> None:
    """Lock several runs, in the order of their ids. A single run is not locked here: the caller's write locks it."""
    wanted = sorted(set(run_ids))
    if len(wanted) > 1:
        list(Run.objects.select_for_update(no_key=True).filter(id__in=wanted).order_by("id").values_list("id"))


def lock_to_delete(run_id: UUID) -> None:
    """Wait in the deleter's transaction for all writers of the run, and keep new ones out."""
    list(Run.objects.select_for_update().filter(id=run_id).values_list("id"))


def status_held(run_id: UUID | str) -> Status | None:
    """A run's status, or None if there is no such run. Until the caller's transaction ends the run cannot be deleted;
    other writes of it continue."""
    if postgres.in_use():
        rows = postgres.execute("SELECT status FROM ravi_run WHERE id = %s::uuid FOR KEY SHARE", [str(run_id)])
        return Status(rows[0][0]) if rows else None
    status = Run.objects.filter(id=run_id).values_list("status", flat=True).first()
    return None if status is None else Status(status)


class NotLocked(Exception):
    """A write needs these runs too, but has locked others already: locking these now could deadlock."""

    def __init__(self, run_ids: Iterable[UUID]) -> None:
        self.run_ids = set(run_ids)
        super().__init__()


def require(run_ids: Iterable[UUID], held: set[UUID]) -> None:
    """Raise NotLocked unless all runs are in `held`."""
    if missing := set(run_ids) - held:
        raise NotLocked(missing)


def append_locked(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    run_ids: Iterable[UUID],
    also: Callable[[set[UUID]], Any],
) -> int:
    """A write of a lease holder, in one transaction with these runs locked: append, then call `also` with the locked
    runs. Returns the seq of the first row."""
    store_big_values(entries)

    def write(held: set[UUID]) -> int:
        first = append_rows(lease, entries, turns)
        also(held)
        return first

    return locking({lease.run_id, *run_ids}, write)


def locking(run_ids: Iterable[UUID], write: Callable[[set[UUID]], T]) -> T:
    """Lock these runs in one transaction and call `write` with their ids. When it needs more runs (NotLocked), roll
    back and start again with those too. This ends: `write` needs runs of one tree only."""
    held = set(run_ids)
    while True:
        try:
            with transaction.atomic():
                lock(held)
                return write(held)
        except NotLocked as more:
            held |= more.run_ids
