"""What a lease holder records while it drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import Blob, JournalEntry, Run
from ravi_django.runtime.db import clock, postgres
from ravi_django.runtime.journal import fence
from ravi_django.runtime.journal.entries import Entry, NewTurn, externalize, journal_row
from ravi_django.runtime.journal.lease import Lease

BIG_BODY = 256 * 1024  # bytes


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
    """Record effects under the lease, in one commit; returns the seq of the first row."""
    store_big_values(entries)
    return fence.append(lease, entries, turns)


def append_rows(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
    """The same for a caller that holds locks and has stored the big values before it took them."""
    return fence.append(lease, entries, turns)


def appending(also: Callable[..., None]) -> Callable[..., int]:
    """A write of a lease holder: `also` runs behind the append, in its transaction. What it raises undoes both."""

    @wraps(also)
    def write(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), **more: Any) -> int:
        store_big_values(entries)
        with transaction.atomic():
            first = fence.append(lease, entries, turns)
            also(lease, **more)
            return first

    return write


def write_row(run: Run, entry: Entry, epoch: int, *, seq: int | None = None) -> JournalEntry:
    """Write a row without a lease: the next one of a locked run, whose `next_seq` and epoch the caller raises."""
    row: JournalEntry = journal_row(
        entry,
        run_id=run.id,
        seq=run.next_seq if seq is None else seq,
        generation=run.generation,
        epoch=epoch,
        now=clock.now(),
        start=clock.now(),
    )
    row.save(force_insert=True)
    return row


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
    unique = {blob.id: clock.stamp(blob) for blob in blobs}
    rows = [unique[key] for key in sorted(unique)]  # always in this order: two writers must not wait for each other
    if postgres.in_use() and any(len(blob.body) > BIG_BODY for blob in rows):
        for blob in rows:
            postgres.insert_blob(blob)
    else:
        Blob.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["id"], update_fields=["created_at", "erase_at"]
        )
