"""When a run ends, publish the last frames of the other runs of its tree again, from their rows.

Runs below it were cancelled in its transaction, and nobody else publishes that. After the root's end the buffer takes
nothing: what another process has recorded of a child must be out before. The buffer drops second copies.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import TERMINAL, JournalEntry, Run
from ravi_django.runtime.journal.entries import internalize
from ravi_django.runtime.streams import archive as streams_archive
from ravi_django.runtime.streams import frames as framing
from ravi_django.runtime.streams.archive import archive
from ravi_django.runtime.streams.buffer import Batch, EventBuffer, Lost, MarkReached, get_buffer
from ravi_django.runtime.streams.frames import Frame, Source
from ravi_django.runtime.streams.reading import archived

UNSENT = timedelta(seconds=3)  # longer than a process holds frames back while the buffer takes them
CLOCKS = timedelta(seconds=1)  # between this process and the database


def ended_with(run: Run, at: datetime) -> list[Frame]:
    """Of the runs that have ended with `run`, which ended at about `at`; of a root, all that may not be out yet."""
    rows = JournalEntry.objects.filter(run__root_id=run.tree_id).exclude(run_id=run.id)
    if run.parent_id is None:
        rows = rows.filter(finished_at__gte=at - UNSENT)
    else:
        rows = rows.filter(finished_at__gte=at - CLOCKS, kind="run.cancelled", run__finished_at__isnull=False)
    entries = list(rows.order_by("finished_at", "seq").select_related("run"))
    internalize(entries)
    sources: dict[UUID, Source] = {entry.run_id: Source.of(entry.run) for entry in entries}
    whose = zip(framing.authors(entries, sources), entries, strict=True)
    return [frame for source, entry in whose for frame in framing.durable(source, _Row(entry), entry.seq)]


RESERVE = 1000  # numbers reserved on the root's row at a time
PAGE = 500  # journal rows of which frames are made at a time


def restart(buffer: EventBuffer, batch: Batch, old: int) -> list[int] | Exception:
    """The buffer lost the tree: number on above `old`, the last number that may have been used, after one
    `stream.gap`."""
    kept = archived(batch.tree)  # before a retry
    start = kept[-1]["seq"] + 1 if kept else 1
    gap = Frame(batch.frames[0].source, "stream.gap", {"from": start, "to": old, "snapshot": snapshot(batch.tree)})
    opening = Batch(batch.tree, [gap], old, fresh=False, restart=True)
    buffer.append([opening])
    return buffer.append([batch])[0]


def snapshot(tree: str) -> dict[str, Any]:
    """Where the tree stands, for a client that cannot have the frames of a gap: its durable frames so far."""
    root, found = durable_frames(tree)
    return {"status": root.status, "output": root.output, "frames": [frame.body() for frame in found]}


def republish(tree: str, buffer: EventBuffer | None = None) -> None:
    """Publish an ended tree's durable frames again, and its end; copies are dropped by their keys. One process at a
    time, under the root's lock; the numbers are reserved in a transaction of their own, so before they are used."""
    buffer = buffer or get_buffer()
    root, found = durable_frames(tree)
    found.append(framing.stream_done(Source.of(root), root.status))
    # An earlier lease may have used numbers that the buffer has lost since.
    fresh = root.event_mark == 0 or (root.started_at is None and root.lease_epoch <= 1)
    reserved = streams_archive.reserve_events(tree, len(found) + RESERVE, skip_locked=True)
    with transaction.atomic():
        ours = Run.objects.select_for_update(no_key=True, skip_locked=True)
        ours = ours.filter(id=tree, lease_epoch=root.lease_epoch, status__in=TERMINAL, published_at=None)
        if reserved is None or ours.first() is None:
            return  # another process has it, has done it, or has retried the run
        batch = Batch(tree, found, reserved.event_mark, fresh=fresh)
        outcome = buffer.append([batch])[0]
        if isinstance(outcome, Lost):
            if root.archive_id is not None:  # it has what came before the last retry
                batch.frames = [*durable_frames(tree, since=_retried_at(root))[1], found[-1]]
            outcome = restart(buffer, batch, reserved.event_mark - len(found) - RESERVE)
        if isinstance(outcome, Exception):
            raise outcome
        archive(buffer, {tree: root.lease_epoch})


def _append(buffer: EventBuffer, batch: Batch) -> list[int] | Exception:
    outcome = buffer.append([batch])[0]
    if isinstance(outcome, MarkReached) and (
        root := streams_archive.reserve_events(batch.tree, len(batch.frames) + RESERVE)
    ):
        batch.mark = root.event_mark
        outcome = buffer.append([batch])[0]
    return outcome


def _retried_at(root: Run) -> datetime | None:
    retried = JournalEntry.objects.filter(run_id=root.id, kind="run.retried", error__isnull=True).order_by("-seq")
    found: datetime | None = retried.values_list("finished_at", flat=True).first()
    return found


def publish_retried(run: Run) -> None:
    """Say that a run goes on. Where the buffer has lost its tree, that is left to the next lease's frames."""
    row = JournalEntry.objects.filter(run_id=run.id, kind="run.retried").latest("seq")
    found = framing.durable(Source.of(run), _Row(row), row.seq)
    _append(get_buffer(), Batch(str(run.tree_id), found, (run.root or run).event_mark, fresh=False))


def publish_ended(run: Run, others: list[Frame]) -> None:
    """Say that a run below the root has ended without a worker, and what ended with it. Where the buffer has lost its
    tree, that is left to the next lease's frames."""
    row = JournalEntry.objects.filter(run_id=run.id).latest("seq")
    found = [*framing.durable(Source.of(run), _Row(row), row.seq), *others]
    _append(get_buffer(), Batch(str(run.tree_id), found, (run.root or run).event_mark, fresh=False))


def publish_past(run: Run) -> None:
    """Begin a fork's stream with what it has come to share."""
    root, found = durable_frames(str(run.id))
    if found and root.event_mark == 0:  # its first append reserves
        _append(get_buffer(), Batch(str(run.id), found, 0, fresh=True))


def durable_frames(tree: str, since: datetime | None = None) -> tuple[Run, list[Frame]]:
    root = Run.objects.get(id=tree)
    sources = {run.id: Source.of(run) for run in (root, *Run.objects.filter(root_id=UUID(tree)))}
    rows = JournalEntry.objects.filter(run_id__in=sources)
    if since is not None:
        rows = rows.filter(finished_at__gte=since)
    latest = rows.order_by("-finished_at", "-seq").iterator(PAGE)
    parts = []
    while entries := list(islice(latest, PAGE))[::-1]:  # a frame is small, the body of a row need not be
        internalize(entries)
        whose = zip(framing.authors(entries, sources), entries, strict=True)
        parts.append([frame for source, row in whose for frame in framing.durable(source, _Row(row), row.seq)])
    return root, [frame for part in reversed(parts) for frame in part]


class _Row:
    """A stored journal row in the shape of an Entry."""

    __slots__ = ("cost", "error", "finished_at", "kind", "name", "path", "phase", "request", "result", "usage")

    def __init__(self, row: JournalEntry) -> None:
        from ravi_django.kernel import Usage

        self.kind, self.name, self.path, self.phase = row.kind, row.name, row.path, row.phase
        self.request, self.result, self.error, self.cost = row.request, row.result, row.error, row.cost
        self.finished_at = row.finished_at
        self.usage = Usage(
            input_tokens=row.input_tokens or 0,
            cached_tokens=row.cached_tokens or 0,
            output_tokens=row.output_tokens or 0,
            reasoning_tokens=row.reasoning_tokens or 0,
        )
