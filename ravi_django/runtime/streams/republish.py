"""Publish frames again from the journal: of the other runs of a tree when a run ends, of a tree whose buffer lost them,
of retries and forks.

Runs below a run that ends were cancelled in its transaction, and no worker publishes that. The buffer takes nothing
after the root's end, so frames of children must be out before it. The buffer drops second copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import TERMINAL, JournalEntry, Run
from ravi_django.runtime.journal.entries import internalize
from ravi_django.runtime.streams import archive as streams_archive, frames as framing
from ravi_django.runtime.streams.archive import archive
from ravi_django.runtime.streams.buffer import Batch, EventBuffer, Lost, MarkReached, get_buffer
from ravi_django.runtime.streams.frames import Frame, Source
from ravi_django.runtime.streams.reading import archived, durable_frames, frames_of, snapshot

log = logging.getLogger("ravi.publish")

UNSENT = timedelta(seconds=3)  # longer than a process keeps frames while the buffer works
CLOCKS = timedelta(seconds=1)  # difference between the clocks of this process and the database


def ended_with(run: Run, at: datetime) -> list[Frame]:
    """The frames of the runs that ended with `run`, at about `at`; for a root, all frames that may not be out yet."""
    rows = JournalEntry.objects.filter(run__root_id=run.tree_id).exclude(run_id=run.id)
    if run.parent_id is None:
        rows = rows.filter(finished_at__gte=at - UNSENT)
    else:
        rows = rows.filter(finished_at__gte=at - CLOCKS, kind="run.cancelled", run__finished_at__isnull=False)
    entries = list(rows.order_by("finished_at", "seq").select_related("run"))
    internalize(entries)
    sources: dict[UUID, Source] = {entry.run_id: Source.of(entry.run) for entry in entries}
    return frames_of(entries, sources)


RESERVE = 1000  # numbers reserved on the root's row at a time


def restart(buffer: EventBuffer, batch: Batch, old: int) -> list[int] | Exception:
    """The buffer lost the tree: continue above `old`, the last number that may have been used, after one
    `stream.gap`."""
    kept = archived(batch.tree)  # before a retry
    start = kept[-1]["seq"] + 1 if kept else 1
    gap = Frame(batch.frames[0].source, "stream.gap", {"from": start, "to": old, "snapshot": snapshot(batch.tree)})
    buffer.append([replace(batch, frames=[gap], mark=old, restart=True)])
    return buffer.append([batch])[0]


def republish(tree: str, buffer: EventBuffer | None = None) -> None:
    """Publish an ended tree's durable frames and its end again; the buffer drops copies by their keys. One process at a
    time, under the root's lock; the numbers are reserved in an earlier transaction of their own."""
    buffer = buffer or get_buffer()
    root, found = durable_frames(tree)
    found.append(framing.stream_done(Source.of(root), root.status))
    # Not fresh: an earlier lease may have used numbers that the buffer has lost.
    fresh = root.event_mark == 0 or (root.started_at is None and root.lease_epoch <= 1)
    reserved = streams_archive.reserve_events(tree, len(found) + RESERVE, skip_locked=True)
    with transaction.atomic():
        ours = Run.objects.select_for_update(no_key=True, skip_locked=True)
        ours = ours.filter(id=tree, lease_epoch=root.lease_epoch, status__in=TERMINAL, published_at=None)
        if reserved is None or ours.first() is None:
            return  # another process does it, has done it, or has retried the run
        batch = Batch(tree, found, reserved.event_mark, fresh=fresh)
        outcome = buffer.append([batch])[0]
        if isinstance(outcome, Lost):
            if root.archive_id is not None:  # it has the frames from before the last retry
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


def on_commit(run: Run, publish: Callable[[Run], None]) -> None:
    """Publish after the commit. A failure is logged: the next lease or the sweep publishes the same frames."""

    def published() -> None:
        try:
            publish(run)
        except Exception as error:
            log.warning("run %s: not published yet: %s", run.id, error, extra={"action": "publish.failed"})

    transaction.on_commit(published, robust=True)


def publish_retried(run: Run) -> None:
    """Publish that a run continues."""
    _publish_row(run, JournalEntry.objects.filter(run_id=run.id, kind="run.retried").latest("seq"))


def publish_ended(run: Run, others: list[Frame]) -> None:
    """Publish that a run below the root has ended without a worker, and `others`, the frames that ended with it."""
    _publish_row(run, JournalEntry.objects.filter(run_id=run.id).latest("seq"), others)


def _publish_row(run: Run, row: JournalEntry, others: Sequence[Frame] = ()) -> None:
    """Where the buffer has lost the tree, the next lease's frames publish it."""
    found = [*framing.durable(Source.of(run), row, row.seq), *others]
    _append(get_buffer(), Batch(str(run.tree_id), found, (run.root or run).event_mark, fresh=False))


def publish_past(run: Run) -> None:
    """Begin a fork's stream with the frames of the shared past."""
    root, found = durable_frames(str(run.id))
    if found and root.event_mark == 0:  # its first append reserves numbers
        _append(get_buffer(), Batch(str(run.id), found, 0, fresh=True))
