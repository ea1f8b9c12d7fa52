"""Items that wait for followers: published, and to be delivered later.

Only the oldest item of a follow has a due time; the others are BEHIND it. So putting a follow off changes one row,
however many items wait. Taking the oldest moves the next one up, under the lock of the follow's row.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import F, OuterRef, Subquery, UUIDField

from ravi_django.models import FeedItem, Follow, Publication
from ravi_django.runtime.db import clock, postgres
from ravi_django.runtime.social.delivery_rows import _text

log = logging.getLogger("ravi.fan_out")

BEHIND = datetime(9999, 1, 1, tzinfo=UTC)
MOST = 1_000  # items that wait for one follow: five full messages, more than anybody catches up with


def set_aside(publication_id: UUID, rows: Sequence[tuple[UUID, datetime, int]]) -> None:
    """Have it delivered to these follows at that time; with the number of deliveries that made an error."""
    if not rows:
        return
    if postgres.in_use():
        given = [[str(follow_id), due.isoformat(), tries] for follow_id, due, tries in rows]
        params = {"now": postgres.present(), "publication": str(publication_id), "rows": _text(given)}
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


def oldest_due(follow_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """When the oldest item of each of these follows is due, of those that have one."""
    oldest = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("publication_id")
    rows = Follow.objects.filter(id__in=follow_ids).annotate(items_at=Subquery(oldest.values("due_at")[:1]))
    return dict(rows.filter(items_at__isnull=False).values_list("id", "items_at"))


def put_off(follow_ids: Iterable[UUID], until: datetime) -> None:
    if follow_ids := list(follow_ids):
        FeedItem.objects.filter(follow_id__in=follow_ids, due_at__lt=until).update(due_at=until)


def move_up(follow_ids: Sequence[UUID], present: datetime) -> None:
    """What is the oldest now is due at once. The follows' rows are locked."""
    if not follow_ids:
        return
    oldest = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("publication_id").values("id")
    rows = Follow.objects.filter(id__in=follow_ids).annotate(item=Subquery(oldest[:1])).filter(item__isnull=False)
    ids = list(rows.values_list("item", flat=True))
    FeedItem.objects.filter(id__in=ids, due_at=BEHIND).update(due_at=present)


def drop_oldest(follow_ids: Sequence[UUID], present: datetime) -> None:
    """Of what waits for one follow the newest MOST stay: the oldest are dropped, and counted for the follower to be
    told. The follows' rows are locked."""
    if not follow_ids:
        return
    newest = FeedItem.objects.filter(follow_id=OuterRef("id")).order_by("-publication_id").values("publication_id")
    rows = Follow.objects.filter(id__in=follow_ids).annotate(
        upto=Subquery(newest[MOST : MOST + 1], output_field=UUIDField())
    )
    groups: dict[UUID, list[UUID]] = {}  # as a rule all of one topic have the same
    for follow_id, upto in rows.filter(upto__isnull=False).values_list("id", "upto"):
        groups.setdefault(upto, []).append(follow_id)
    counts: Counter[UUID] = Counter()
    for upto, ids in groups.items():
        over = FeedItem.objects.filter(follow_id__in=ids, publication_id__lte=upto)
        counts.update(over.values_list("follow_id", flat=True))
        over.delete()
    for count in set(counts.values()):
        same = [follow_id for follow_id, number in counts.items() if number == count]
        Follow.objects.filter(id__in=same).update(dropped=F("dropped") + count)
        log.warning(
            "%d items of each of %d follows are dropped, %d wait already: %s",
            *(count, len(same), MOST, ", ".join(map(str, same[:20]))),
            extra={"action": "fan_out.dropped"},
        )
    move_up(list(counts), present)


def forget(rows: Any, why: str) -> None:
    """Give items up: their publications do not count as delivered to these followers."""
    counts: dict[UUID, int] = {}
    found = list(rows.values_list("id", "publication_id", "follow_id"))
    for _, publication_id, _ in found:
        counts[publication_id] = counts.get(publication_id, 0) + 1
    list(Publication.objects.filter(id__in=counts).order_by("id").select_for_update(no_key=True).values_list("id"))
    for count in set(counts.values()):
        ids = sorted(one for one, number in counts.items() if number == count)
        Publication.objects.filter(id__in=ids).update(delivered=F("delivered") - count)
    if found:
        follows = ", ".join(sorted({str(follow_id) for _, _, follow_id in found})[:20])
        log.error(
            "%d items are given up, %s: follows %s", len(found), why, follows, extra={"action": "fan_out.given_up"}
        )
        FeedItem.objects.filter(id__in=[row[0] for row in found]).delete()
