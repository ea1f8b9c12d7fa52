"""The event stream of a tree, as far as rows know about it."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from ravi_django.models import TERMINAL, Blob, Run
from ravi_django.runtime import clock
from ravi_django.runtime.store.journal import save_blobs


def raise_event_mark(tree_id: UUID | str, above: int) -> int:
    """Reserve event numbers ahead of use, so that a lost buffer never leads to a number used twice."""
    Run.objects.filter(id=tree_id, event_mark__lt=above).update(event_mark=above)
    return int(Run.objects.values_list("event_mark", flat=True).get(id=tree_id))


def mark_published(tree_id: UUID | str, archive: Blob | None, epoch: int) -> bool:
    """The end that the root came to under `epoch` is out; the frames, without the single tokens, are kept. False when
    the run was retried since: its stream goes on."""
    with transaction.atomic():
        if archive is not None:
            save_blobs([archive])
        ended = Run.objects.filter(id=tree_id, lease_epoch=epoch, status__in=TERMINAL)
        return bool(ended.update(published_at=clock.now(), archive=archive))


def unpublished(limit: int, older_than_s: float) -> list[UUID]:
    """Ended trees whose last frame may not be out."""
    return list(unpublished_trees(older_than_s).values_list("id", flat=True)[:limit])


def unpublished_trees(older_than_s: float) -> QuerySet[Run]:
    rows = Run.objects.filter(published_at=None, parent=None, finished_at__lt=clock.after(-older_than_s))
    return rows.order_by("finished_at")
