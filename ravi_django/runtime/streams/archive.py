"""The archive of ended trees: the frames of each in one compressed blob, its tokens merged. Also the tree's rows of
numbers and marks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Case, CharField, QuerySet, Value, When
from pydantic_core import to_json

from ravi_django.db import transaction
from ravi_django.models import TERMINAL, Blob, Run
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import save_blobs
from ravi_django.runtime.journal.entries import make_blob
from ravi_django.runtime.streams.buffer import EventBuffer
from ravi_django.runtime.streams.frames import collapse
from ravi_django.runtime.streams.reading import stored

PAGE = 5000  # frames read at a time
MOST = 50  # trees in one transaction


def archive(buffer: EventBuffer, ended: Mapping[str, int]) -> None:
    """Archive the buffer's frames of these trees (epoch of the end by id), mark the trees as published, and let the
    buffer delete the frames soon."""
    trees = list(ended)
    for start in range(0, len(trees), MOST):
        some = {tree: ended[tree] for tree in trees[start : start + MOST]}
        buffer.expire({tree: some[tree] for tree in mark_many_published(_archives(buffer, some))})


def _archives(buffer: EventBuffer, ended: Mapping[str, int]) -> dict[str, tuple[Blob, int]]:
    """The archive and epoch by tree, without trees whose end the buffer has lost: the sweep publishes them again."""
    found: dict[str, tuple[Blob, int]] = {}
    for (tree, epoch), page in zip(ended.items(), buffer.read_many(list(ended), PAGE), strict=True):
        frames = _rest(buffer, tree, page)
        if any(frame["type"] == "stream.done" and frame["attempt"] == str(epoch) for frame in reversed(frames)):
            found[tree] = (_blob(frames), epoch)
    return found


def _rest(buffer: EventBuffer, tree: str, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] | None = frames
    while page and len(page) == PAGE:
        page = buffer.read(tree, frames[-1]["seq"], PAGE)
        frames += page or []
    if frames and frames[0]["seq"] > 1:  # the buffer has lost the frames from before a retry
        frames = [*(frame for frame in stored(tree) if frame["seq"] < frames[0]["seq"]), *frames]
    return frames


def _blob(frames: list[dict[str, Any]]) -> Blob:
    return make_blob(to_json(collapse(frames)), compress=True)


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


def mark_many_published(archives: Mapping[str, tuple[Blob, int]]) -> list[str]:
    """Mark the ends of these roots as published, by tree the archive and the epoch of the end. Returns the marked ones,
    without those that were retried since or whose row another transaction has locked."""
    with transaction.atomic():
        save_blobs([blob for blob, _ in archives.values()])
        ended = Run.objects.select_for_update(no_key=True, skip_locked=True)
        ended = ended.filter(id__in=list(archives), status__in=TERMINAL)
        marked = [id for id, epoch in ended.values_list("id", "lease_epoch") if epoch == archives[str(id)][1]]
        archive = Case(*(When(id=id, then=Value(archives[str(id)][0].id)) for id in marked), output_field=CharField())
        Run.objects.filter(id__in=marked).update(published_at=clock.now(), archive=archive)
    return [str(id) for id in marked]


def archived_at(tree: UUID | str) -> datetime | None:
    """When the stream was last archived: the frames of all rows until then are in it."""
    return Run.objects.values_list("archive__created_at", flat=True).get(id=tree)


def unpublished(limit: int, older_than_s: float) -> list[UUID]:
    """Ended trees whose last frame may not be out."""
    return list(unpublished_trees(older_than_s).values_list("id", flat=True)[:limit])


def unpublished_trees(older_than_s: float) -> QuerySet[Run]:
    rows = Run.objects.filter(published_at=None, parent=None, finished_at__lt=clock.after(-older_than_s))
    return rows.order_by("finished_at")
