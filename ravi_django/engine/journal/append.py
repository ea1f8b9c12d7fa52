"""Appends of a lease holder to the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from ravi_django.db import transaction
from ravi_django.engine.db import clock, postgres
from ravi_django.engine.journal import fence
from ravi_django.engine.journal.entries import Entry, NewTurn, externalize, journal_row
from ravi_django.engine.journal.lease import Lease
from ravi_django.models import AfterLease, Blob, JournalEntry, Run, Status

BIG_BODY = 256 * 1024  # bytes


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = ()) -> int:
    """Record effects under the lease in one commit; returns the seq of the first row."""
    store_big_values(entries)
    return fence.append(lease, entries, turns)


append_rows = fence.append  # for a caller that holds locks, and has stored the big values before it took them


def appending(also: Callable[..., None]) -> Callable[..., int]:
    """Decorate `also` to append before it runs, in one transaction. Its errors roll back both."""

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
    entry.seq = run.next_seq if seq is None else seq
    row: JournalEntry = journal_row(
        entry,
        run_id=run.id,
        generation=run.generation,
        epoch=epoch,
        now=clock.now(),
        start=clock.now(),
    )
    row.save(force_insert=True)
    return row


def write_outside(run: Run, entry: Entry) -> JournalEntry:
    """Write a row of a locked run without a lease. The epoch rises, unless a worker has the lease: it keeps writing
    under its epoch until it is notified."""
    epoch = run.lease_epoch + (run.status != Status.RUNNING)
    Run.objects.filter(id=run.id).update(lease_epoch=epoch, next_seq=F("next_seq") + 1)
    return write_row(run, entry, epoch)


def mark(run_id: UUID | str) -> None:
    """Note that something will be left to do for a locked run after its lease."""
    AfterLease.objects.bulk_create([AfterLease(run_id=run_id)], ignore_conflicts=True)


def unmark(run_ids: Iterable[UUID] | QuerySet[Run]) -> None:
    """Nothing is left to do for these locked runs, which have no lease."""
    AfterLease.objects.filter(run__in=run_ids).delete()


def store_big_values(entries: Sequence[Entry]) -> None:
    """Store values that are too big for a row, before the rows: at worst the prune finds an unused blob."""
    for entry in entries:
        if blobs := externalize(entry):
            save_blobs(blobs)


def save_blobs(blobs: Sequence[Blob]) -> None:
    """Store bodies. One that is stored already gets a new time, so that the prune keeps it until its row is written."""
    unique = {blob.id: clock.stamp(blob) for blob in blobs}
    rows = [unique[key] for key in sorted(unique)]  # in one order, so that two writers cannot deadlock
    if postgres.in_use() and any(len(blob.body) > BIG_BODY for blob in rows):
        for blob in rows:
            postgres.insert_blob(blob)
    else:
        Blob.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["id"], update_fields=["created_at", "erase_at"]
        )
