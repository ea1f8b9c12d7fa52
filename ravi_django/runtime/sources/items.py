"""The rows of a source's items, and the limit of items a day."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Max, Min, QuerySet
from django.utils import timezone

from ravi_django.capabilities.feeds import Item
from ravi_django.kernel.json_values import storable
from ravi_django.models import Source, SourceItem
from ravi_django.runtime.db import clock

A_DAY = 2_000  # items, new or edited, of feeds and webhooks
TODAY = "delivered_today"  # the option that counts them: {date, items}
ENOUGH = (
    "the source has reached its option max_items_a_day for today; the rest is delivered tomorrow if the source "
    "still has it"
)
SEEN_S = 24 * 3600.0  # between two writes of `seen_at`
ROWS = 5_000  # deleted in one transaction, at most


def items_known(source: Source, items: Sequence[Item]) -> dict[str, SourceItem]:
    rows = SourceItem.objects.filter(source=source, identity__in=[item.identity for item in items])
    return {row.identity: row for row in rows}


def items_seen(rows: Collection[SourceItem]) -> None:
    """Record that they are still in the source. No query unless the last record is a day old."""
    before = (clock.fixed() or timezone.now()) - timedelta(seconds=SEEN_S)
    if old := [row.id for row in rows if row.seen_at < before]:
        SourceItem.objects.filter(id__in=old).update(seen_at=clock.now())


def is_outdated(row: SourceItem, signed_at: datetime | None) -> bool:
    """Whether the row's text was signed later: a repeated old webhook request is not an edit."""
    return signed_at is not None and row.signed_at is not None and signed_at < row.signed_at


def record_items(source: Source, items: Sequence[Item], signed_at: datetime | None = None) -> None:
    """Raises IntegrityError when another transaction has recorded one of them: no item is delivered twice."""
    present = clock.fixed()
    seen = {} if present is None else {"seen_at": present}
    SourceItem.objects.bulk_create(
        SourceItem(
            source=source,
            identity=item.identity,
            digest=item.digest,
            title=item.title,
            url=item.url,
            signed_at=signed_at,
            **seen,
        )
        for item in items
    )


def record_edits(rows: list[SourceItem], items: Sequence[Item], signed_at: datetime | None = None) -> None:
    for row, item in zip(rows, items, strict=True):
        row.digest, row.title, row.url = item.digest, item.title, item.url
        row.revision += 1
        row.changed_at = clock.now()
        row.signed_at = signed_at or row.signed_at
    SourceItem.objects.bulk_update(rows, ["digest", "title", "url", "revision", "changed_at", "signed_at"])


def item_body(source: Source, item: Item, revision: int) -> dict[str, Any]:
    about = {"source": source.name, "source_id": str(source.id), "identity": item.identity, "revision": revision}
    body: dict[str, Any] = storable({**item.to_json(), **about})
    return body


def room_today(source: Source) -> int | None:
    """How many more of its items may be delivered today (UTC); None: no limit."""
    most = most_a_day(source)
    return None if most is None else max(0, most - _delivered_today(source))


def count_today(source: Source, delivered: int) -> None:
    if delivered and most_a_day(source) is not None:
        counted = {"date": _today(), "items": _delivered_today(source) + delivered}
        source.options = {**source.options, TODAY: counted}
        Source.objects.filter(id=source.id).update(options=source.options)


def most_a_day(source: Source) -> int | None:
    default = A_DAY if source.kind in (Source.Kind.FEED, Source.Kind.WEBHOOK) else None
    return _count(source.options.get("max_items_a_day")) or default


def _delivered_today(source: Source) -> int:
    counted = source.options.get(TODAY)
    is_today = isinstance(counted, dict) and counted.get("date") == _today()
    return _count(counted.get("items")) if is_today else 0


def _count(value: Any) -> int:
    """A whole number above 0, else 0: options may hold anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _today() -> str:
    return (clock.fixed() or timezone.now()).date().isoformat()


def count_old_items(older_than_s: float) -> int:
    """How many `prune_items` would delete."""
    return sum(_old(source_id, before, older_than_s).count() for source_id, before in _with_old(older_than_s))


def prune_items(older_than_s: float) -> int:
    """Delete items that were not seen for so long, while others of the source were: what is in its last answer stays.
    Items of models stay, because their revisions count on, and GitHub's, because its signatures do not expire. Deletes
    ROWS in one transaction; returns the number of all."""
    gone = 0
    for source_id, before in _with_old(older_than_s):
        rows, last = _old(source_id, before, older_than_s), ""
        while found := list(rows.filter(identity__gt=last).order_by("identity").values_list("id", "identity")[:ROWS]):
            gone += rows.filter(id__in=[row_id for row_id, _ in found]).delete()[0]  # seen again meanwhile, it stays
            last = found[-1][1]
    return gone


def _with_old(older_than_s: float) -> list[tuple[UUID, datetime]]:
    """The sources that have such items, with the latest `seen_at` of an item to delete. One query, which reads each
    item once."""
    rows = SourceItem.objects.exclude(source__kind=Source.Kind.MODEL)
    rows = rows.exclude(source__in=Source.objects.filter(kind=Source.Kind.WEBHOOK, options__scheme="github"))
    by_source = rows.order_by().values("source").annotate(first=Min("seen_at"), latest=Max("seen_at"))
    there = timedelta(seconds=2 * SEEN_S)
    old = by_source.filter(first__lt=clock.after(-older_than_s)).filter(first__lt=F("latest") - there)
    return [(source_id, latest - there) for source_id, latest in old.values_list("source", "latest")]


def _old(source_id: UUID, before: datetime, older_than_s: float) -> QuerySet[SourceItem]:
    rows = SourceItem.objects.filter(source=source_id, undelivered__isnull=True, seen_at__lt=before)
    return rows.filter(seen_at__lt=clock.after(-older_than_s))
