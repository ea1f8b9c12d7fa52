"""What a lease holder writes: effects while it drives, and the end of the lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.kernel import LeaseLostError
from ravi_django.models import Blob, InboxMessage, JournalEntry, Run, Status
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn, externalize
from ravi_django.runtime.store import fence, postgres
from ravi_django.runtime.store.endings import drop_turns, end_dependents, note_closed, settle_asks
from ravi_django.runtime.store.inboxes import CARRIED
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.queue import promote, stamp
from ravi_django.runtime.store.touching import RELEASED, locking, ready

BIG_BODY = 256 * 1024  # bytes


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
    """Record effects under the lease, in one commit; returns the seq of the first row."""
    store_big_values(entries)
    return fence.append(lease, entries, turns)


def already_appended(entry_id: UUID) -> int | None:
    """The seq of a row that an append with a lost answer did write."""
    return JournalEntry.objects.filter(id=entry_id).values_list("seq", flat=True).first()


def store_big_values(entries: Sequence[Entry]) -> None:
    """Blobs are content-addressed: writing them first leaves at worst an unused one for the prune."""
    for entry in entries:
        if blobs := externalize(entry):
            save_blobs(blobs)


def save_blobs(blobs: Sequence[Blob]) -> None:
    """Store bodies; one that is there already is young again, so that nothing takes it before its row is there."""
    unique = {blob.id: stamp(blob) for blob in blobs}
    rows = [unique[key] for key in sorted(unique)]  # always in this order: two writers must not wait for each other
    if postgres.in_use() and any(len(blob.body) > BIG_BODY for blob in rows):
        for blob in rows:
            postgres.insert_blob(blob)
    else:
        Blob.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["id"], update_fields=["created_at", "erase_at"]
        )


class Unseen(Exception):
    """The run has a message that its code has not been given: it is not complete yet."""


def finish(
    lease: Lease,
    status: Status,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    output: str | None = None,
    error: dict[str, Any] | None = None,
    inbox_upto: int | None = None,
    entangled: bool = False,
    retains: bool = True,
) -> tuple[int, list[UUID]]:
    """End the run under its lease, tell whoever waits for it, and promote the next queued run of its session.
    `entangled` says that it may have children or open requests: they end with it; `retains` that all its turns stay.

    Returns the seq of the first row written, and the runs to hint. Raises Unseen when a run that would complete has a
    message above `inbox_upto`; nothing is written then.
    """
    run = lease.run
    if entangled:
        note_closed(run.id, entries[-1])
    store_big_values(entries)
    changes = {
        "status": status,
        "output": output,
        "error": error,
        "finished_at": clock.now(),
        "waiting_on": None,
        **({} if run.parent_id is None else {"paused_at": None}),
        **RELEASED,
    }

    def end(held: set[UUID]) -> tuple[int, list[UUID]]:
        woken = False
        try:
            first = fence.append_in_transaction(lease, entries, turns, seen=run.wake_seq, **changes)
        except LeaseLostError:  # or woken since the claim: then this one does not raise
            first, woken = fence.append_in_transaction(lease, entries, turns, **changes), True
            if status == Status.COMPLETED and _unseen(run, inbox_upto):
                raise Unseen from None
        if not retains:
            drop_turns(run.id)
        hints: list[UUID] = []
        if run.parent_id is not None or woken or run.wake_seq:
            hints += settle_asks(run.id, status, output, error, held)
        if entangled:
            hints += end_dependents(run, held)
        return first, [*hints, *promote(run)]

    return locking({run.id} if run.parent_id is None else {run.parent_id, run.id}, end)


def _unseen(run: Run, inbox_upto: int | None) -> bool:
    after = max(run.inbox_from, inbox_upto or 0)
    return InboxMessage.objects.filter(run_id=run.id, id__gt=after).exclude(message_id=CARRIED).exists()


def block(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, error: dict[str, Any]) -> int:
    """Set the run aside for an operator, under its lease; returns the seq of the first row written."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append_in_transaction(lease, entries, turns, status=Status.BLOCKED, error=error, **RELEASED)
        # Whoever has asked for its end gets it: the next lease sees that first of all.
        Run.objects.filter(id=lease.run_id, cancel_requested_at__isnull=False).update(**ready())
        return first


def requeue(
    lease: Lease,
    entries: Sequence[Entry] = (),
    turns: Sequence[NewTurn] = (),
    *,
    delay_s: float = 0.0,
    attempts: int | None = None,
    for_release: str = "",
    error: dict[str, Any] | None = None,
) -> int:
    """Give the run back as pending: after a transient error, or because the worker drains. No crash is counted.
    With `for_release` a worker of that release may have it before the delay is over. `error` says why this worker
    cannot drive it, until another one claims it.

    Returns the seq of the first row written.
    """
    changes = {**ready(delay_s), **RELEASED, "for_release": for_release}
    changes |= {} if attempts is None else {"attempts": attempts}
    changes |= {} if error is None else {"error": error}
    changes |= {"release": for_release} if for_release else {}  # it is still the last that wrote anything
    store_big_values(entries)
    with transaction.atomic():
        return fence.append_in_transaction(lease, entries, turns, **changes)
