"""What a lease holder writes: effects while it drives, and the end of the lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from ravi_django.models import (
    Blob,
    JournalEntry,
    Status,
)
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn, externalize
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.queue import promote


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
    Blob.objects.bulk_create(blobs, ignore_conflicts=True)


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
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append_in_transaction(
            lease,
            entries,
            turns,
            status=status,
            output=output,
            error=error,
            finished_at=clock.now(),
            waiting_on=None,
            **RELEASED,
        )
        return first, promote(lease.run)


def block(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, error: dict[str, Any]) -> int:
    """Set the run aside for an operator, under its lease; returns the seq of the first row written."""
    store_big_values(entries)
    with transaction.atomic():
        return fence.append_in_transaction(lease, entries, turns, status=Status.BLOCKED, error=error, **RELEASED)


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
    store_big_values(entries)
    with transaction.atomic():
        return fence.append_in_transaction(
            lease,
            entries,
            turns,
            status=Status.PENDING,
            wake_at=clock.after(delay_s) if delay_s > 0 else None,
            **changes,
            **RELEASED,
        )


RELEASED: dict[str, Any] = {"lease_owner": "", "lease_expires_at": None}
