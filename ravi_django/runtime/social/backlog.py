"""Items that wait for followers: published, and delivered later.

Only the oldest item of a follow has a due time; the others are BEHIND it. So postponing a follow changes one row,
however many items wait. Removing the oldest item makes the next one due, under the lock of the follow's row.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import F, OuterRef, Subquery, UUIDField

from ravi_django.models import FeedItem, Follow, Publication
from ravi_django.runtime.db import clock, postgres
from ravi_django.runtime.social.delivery_rows import json_text

log = logging.getLogger("ravi.fan_out")

T = TypeVar("T")

BEHIND = datetime(9999, 1, 1, tzinfo=UTC)
MOST = 1_000  # items that wait for one follow


def set_aside(publication_id: UUID, rows: Sequence[tuple[UUID, datetime, int]]) -> None:
    """Deliver a publication later: (follow, due time, number of failed deliveries)."""
    if not rows:
        return
    if postgres.in_use():
        values = [[str(follow_id), due.isoformat(), tries] for follow_id, due, tries in rows]
        params = {"now": postgres.present(), "publication": str(publication_id), "rows": json_text(values)}
        postgres.execute(_SET_ASIDE, params)
        return
    FeedItem.objects.bulk_create(
        (
            clock.stamp(FeedItem(follow_id=follow_id, publication_id=publication_id, due_at=due, tries=tries))
            for follow_id, due, tries in rows
        ),
        ignore_conflicts=True,
    )


_SET_ASIDE = f"""
INSERT INTO ravi_feeditem (follow_id, publication_id, due_at, tries, created_at)
SELECT (one ->> 0)::uuid, %(publication)s::uuid, (one ->> 1)::timestamptz, (one ->> 2)::smallint, {postgres.NOW}
FROM jsonb_array_elements(%(rows)s::jsonb) AS one
ON CONFLICT DO NOTHING RETURNING id"""  # noqa: S608 - of our own names


def oldest_due(follow_ids: Collection[UUID]) -> dict[UUID, datetime]:
    """The due time of the oldest item of each follow that has one."""
    rows = Follow.objects.filter(id__in=follow_ids).annotate(items_at=_of_oldest("due_at"))
    return dict(rows.filter(items_at__isnull=False).values_list("id", "items_at"))


def put_off(follow_ids: Iterable[UUID], until: datetime) -> None:
    FeedItem.objects.filter(follow_id__in=list(follow_ids), due_at__lt=until).update(due_at=until)


def move_up(follow_ids: Collection[UUID], present: datetime) -> None:
    """Make the oldest remaining item of each follow due. The caller has locked the follows."""
    ids = Follow.objects.filter(id__in=follow_ids).values_list(_of_oldest("id"), flat=True)
    FeedItem.objects.filter(id__in=list(ids), due_at=BEHIND).update(due_at=present)


def _of_oldest(field: str) -> Subquery:
    items = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("publication_id")
    return Subquery(items.values(field)[:1])


def drop_oldest(follow_ids: Collection[UUID], present: datetime) -> None:
    """Keep the newest MOST items of each follow. The next delivery reports the number of dropped ones. The caller has
    locked the follows."""
    newest = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("-publication_id").values("publication_id")
    rows = Follow.objects.filter(id__in=follow_ids).annotate(
        upto=Subquery(newest[MOST : MOST + 1], output_field=UUIDField())
    )
    counts: Counter[UUID] = Counter()
    for upto, ids in _grouped(dict(rows.filter(upto__isnull=False).values_list("id", "upto"))):
        over = FeedItem.objects.filter(follow_id__in=ids, publication_id__lte=upto)
        counts.update(over.values_list("follow_id", flat=True))
        over.delete()
    for count, ids in _grouped(counts):
        Follow.objects.filter(id__in=ids).update(dropped=F("dropped") + count)
        log.warning(
            "%d items of each of %d follows are dropped, %d wait already: %s",
            *(count, len(ids), MOST, ", ".join(map(str, ids[:20]))),
            extra={"action": "fan_out.dropped"},
        )
    move_up(counts, present)


def forget(rows: Any, why: str) -> None:
    """Give items up: their publications do not count as delivered to these followers."""
    found = list(rows.values_list("id", "publication_id", "follow_id"))
    if not found:
        return
    counts = Counter(publication_id for _, publication_id, _ in found)
    list(Publication.objects.filter(id__in=counts).order_by("id").select_for_update(no_key=True).values_list("id"))
    for count, ids in _grouped(counts):
        Publication.objects.filter(id__in=ids).update(delivered=F("delivered") - count)
    follows = ", ".join(sorted({str(follow_id) for _, _, follow_id in found})[:20])
    log.error("%d items are given up, %s: follows %s", len(found), why, follows, extra={"action": "fan_out.given_up"})
    FeedItem.objects.filter(id__in=[row[0] for row in found]).delete()


def _grouped(values: Mapping[UUID, T]) -> Iterable[tuple[T, list[UUID]]]:
    """Each different value with its keys: as a rule all have the same one."""
    for value in set(values.values()):
        yield value, [key for key, one in values.items() if one == value]
