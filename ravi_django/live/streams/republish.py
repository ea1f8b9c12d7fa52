"""Publish frames again from the journal: of the other runs of a tree when a run ends, of a tree whose buffer lost them,
of retries and forks.

Runs below a run that ends were cancelled in its transaction, and no worker publishes that. The buffer takes nothing
after the root's end, so frames of children must be out before it. The buffer drops second copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.append import unmark
from ravi_django.engine.journal.entries import internalize
from ravi_django.live.streams import frames as framing
from ravi_django.live.streams.buffer import Batch, EventBuffer, Lost, MarkReached, get_buffer
from ravi_django.live.streams.frames import Frame, Source, packed
from ravi_django.live.streams.reading import archived, durable_frames, frames_of, snapshot, stored
from ravi_django.models import TERMINAL, UNPUBLISHED, JournalEntry, Run, StreamArchive

PAGE = 5000  # frames read at a time
MOST = 50  # trees in one transaction


def archive(buffer: EventBuffer, ended: Mapping[str, int]) -> None:
    """Archive the buffer's frames of these trees (epoch of the end by id), mark the trees as published, and let the
    buffer delete the frames soon."""
    trees = list(ended)
    for start in range(0, len(trees), MOST):
        some = {tree: ended[tree] for tree in trees[start : start + MOST]}
        buffer.expire({tree: some[tree] for tree in mark_many_published(_archives(buffer, some))})


def _archives(buffer: EventBuffer, ended: Mapping[str, int]) -> dict[str, tuple[bytes, int]]:
    """The archive and epoch by tree, without trees whose end the buffer has lost: the sweep publishes them again."""
    archives: dict[str, tuple[bytes, int]] = {}
    for (tree, epoch), page in zip(ended.items(), buffer.read_many(list(ended), PAGE), strict=True):
        frames = _rest(buffer, tree, page)
        if any(frame["type"] == "stream.done" and frame["attempt"] == str(epoch) for frame in reversed(frames)):
            archives[tree] = (packed(frames), epoch)
    return archives


def _rest(buffer: EventBuffer, tree: str, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] | None = frames
    while page and len(page) == PAGE:
        page = buffer.read(tree, frames[-1]["seq"], PAGE)
        frames += page or []
    if frames and frames[0]["seq"] > 1:  # the buffer has lost the frames from before a retry
        frames = [*(frame for frame in stored(tree) if frame["seq"] < frames[0]["seq"]), *frames]
    return frames


def reserve_events(tree_id: UUID | str, count: int, *, skip_locked: bool = False) -> Run | None:
    """Reserve `count` event numbers above all that may have been used: a lost buffer must not lead to a number used
    twice. Returns the root, with the new mark; None without one, or with `skip_locked` when another transaction has
    locked its row."""
    with transaction.atomic():
        root = Run.objects.select_for_update(no_key=True, skip_locked=skip_locked).filter(id=tree_id).first()
        if root is not None:
            root.event_mark += count
            root.save(update_fields=["event_mark"])
    return root


def mark_many_published(archives: Mapping[str, tuple[bytes, int]]) -> list[str]:
    """Mark the ends of these roots as published, by tree the archive and the epoch of the end. Returns the marked ones,
    without those that were retried since or whose row another transaction has locked."""
    with transaction.atomic():
        ended = Run.objects.select_for_update(no_key=True, skip_locked=True)
        ended = ended.filter(id__in=list(archives), status__in=TERMINAL)
        epochs = sorted(ended.values_list("id", "lease_epoch"))  # ordered keys fill the pages of an index
        marked = [id for id, epoch in epochs if epoch == archives[str(id)][1]]
        StreamArchive.objects.bulk_create(
            [clock.stamp(StreamArchive(tree_id=id, body=archives[str(id)][0])) for id in marked],
            update_conflicts=True,
            unique_fields=["tree"],
            update_fields=["body", "created_at"],
        )
        Run.objects.filter(id__in=marked).update(published_at=clock.now())
        unmark(Run.objects.filter(id__in=marked, counted_seq=F("next_seq") - 1))
    return [str(id) for id in marked]


def archived_at(tree: UUID | str) -> datetime | None:
    """When the stream was last archived: the frames of all rows until then are in it."""
    return StreamArchive.objects.filter(tree_id=UUID(str(tree))).values_list("created_at", flat=True).first()


def unpublished(limit: int, older_than_s: float) -> list[UUID]:
    """Ended trees whose last frame may not be out."""
    return list(unpublished_trees(older_than_s).values_list("id", flat=True)[:limit])


def unpublished_trees(older_than_s: float) -> QuerySet[Run]:
    rows = Run.objects.filter(UNPUBLISHED, after_lease__isnull=False, finished_at__lt=clock.after(-older_than_s))
    return rows.order_by("finished_at")


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
    entries = list(rows.order_by("finished_at", "seq").select_related("run__parent"))
    internalize(entries)
    sources: dict[UUID, Source] = {entry.run_id: Source.of(entry.run) for entry in entries}
    return frames_of(entries, sources)


RESERVE = 1000  # numbers reserved on the root's row at a time


def restart(buffer: EventBuffer, batch: Batch, old: int) -> list[int] | Exception:
    """The buffer lost the tree: continue above `old`, the last number that may have been used, after one
    `stream.gap`."""
    archived_frames = archived(batch.tree)  # before a retry
    start = archived_frames[-1]["seq"] + 1 if archived_frames else 1
    gap = Frame(batch.frames[0].source, "stream.gap", {"from": start, "to": old, "snapshot": snapshot(batch.tree)})
    buffer.append([replace(batch, frames=[gap], mark=old, restart=True)])
    return buffer.append([batch])[0]


def republish(tree: str, buffer: EventBuffer | None = None) -> None:
    """Publish an ended tree's durable frames and its end again; the buffer drops copies by their keys. One process at a
    time, under the root's lock; the numbers are reserved in an earlier transaction of their own."""
    buffer = buffer or get_buffer()
    root, frames = durable_frames(tree)
    frames.append(framing.stream_done(Source.of(root), root.status))
    # Not fresh: an earlier lease may have used numbers that the buffer has lost.
    fresh = root.event_mark == 0 or (root.started_at is None and root.lease_epoch <= 1)
    reserved = reserve_events(tree, len(frames) + RESERVE, skip_locked=True)
    with transaction.atomic():
        ours = Run.objects.select_for_update(no_key=True, skip_locked=True)
        ours = ours.filter(id=tree, lease_epoch=root.lease_epoch, status__in=TERMINAL, published_at=None)
        if reserved is None or ours.first() is None:
            return  # another process does it, has done it, or has retried the run
        batch = Batch(tree, frames, reserved.event_mark, fresh=fresh)
        outcome = buffer.append([batch])[0]
        if isinstance(outcome, Lost):
            if archived_at(tree) is not None:  # it has the frames from before the last retry
                batch.frames = [*durable_frames(tree, since=_retried_at(root))[1], frames[-1]]
            outcome = restart(buffer, batch, reserved.event_mark - len(frames) - RESERVE)
        if isinstance(outcome, Exception):
            raise outcome
        archive(buffer, {tree: root.lease_epoch})


def _append(buffer: EventBuffer, batch: Batch) -> list[int] | Exception:
    outcome = buffer.append([batch])[0]
    if isinstance(outcome, MarkReached) and (root := reserve_events(batch.tree, len(batch.frames) + RESERVE)):
        batch.mark = root.event_mark
        outcome = buffer.append([batch])[0]
    return outcome


def _retried_at(root: Run) -> datetime | None:
    retried = JournalEntry.objects.filter(run_id=root.id, kind="run.retried", error__isnull=True).order_by("-seq")
    retried_at: datetime | None = retried.values_list("finished_at", flat=True).first()
    return retried_at


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
    frames = [*framing.durable(Source.of(run), row, row.seq), *others]
    _append(get_buffer(), Batch(str(run.tree_id), frames, (run.root or run).event_mark, fresh=False))


def publish_past(run: Run) -> None:
    """Begin a fork's stream with the frames of the shared past."""
    root, frames = durable_frames(str(run.id))
    if frames and root.event_mark == 0:  # its first append reserves numbers
        _append(get_buffer(), Batch(str(run.id), frames, 0, fresh=True))
