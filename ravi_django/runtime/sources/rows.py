"""Which source is polled next, and what a poll found.

A poller holds the source for a while: `polling_until` is its lease, and its result is written only if that time is
unchanged. If a poller is killed, the items it delivered stay delivered, and the source is due again after that time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import F, Q, QuerySet

from ravi_django.capabilities.feeds.adapter import Polled
from ravi_django.db import transaction
from ravi_django.models import Source
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.entries import storable

STATE = "state"  # the option that an adapter's memory is kept in
MOVED = "moved_from"  # the option that tells where a source was before


def add_source(source: Source) -> Source:
    """Write a new source's row."""
    if (present := clock.fixed()) is not None:
        source.created_at = present
    source.save(force_insert=True)
    return source


def _due(kinds: Collection[str]) -> QuerySet[Source]:
    present = clock.now()
    return Source.objects.filter(
        Q(next_at=None) | Q(next_at__lte=present),
        Q(polling_until=None) | Q(polling_until__lte=present),
        enabled=True,
        kind__in=sorted(kinds),
    )


def any_source_due(kinds: Collection[str]) -> bool:
    return _due(kinds).exists()


def claim_sources(kinds: Collection[str], limit: int, lease_s: float) -> list[Source]:
    """Take up to `limit` due sources for `lease_s` seconds; those that another is taking are left to it."""
    with transaction.atomic():
        rows = _due(kinds).select_for_update(skip_locked=True, no_key=True)
        ids = [row.id for row in rows.order_by(F("next_at").asc(nulls_first=True), "id").only("id")[:limit]]
        if not ids:
            return []
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        return list(Source.objects.filter(id__in=ids).order_by(F("next_at").asc(nulls_first=True), "id"))


def renew_sources(sources: Sequence[Source], lease_s: float) -> None:
    """Hold sources for longer, those that nobody else has taken; of each the time goes into its `polling_until`."""
    if not sources:
        return
    held = Q()
    for source in sources:
        held |= _held(source)
    with transaction.atomic():
        ids = list(
            Source.objects.select_for_update(no_key=True).filter(held).order_by("id").values_list("id", flat=True)
        )
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        until = dict(Source.objects.filter(id__in=ids).values_list("id", "polling_until"))
    for source in sources:
        source.polling_until = until.get(source.id, source.polling_until)


def put_off(sources: Sequence[Source], seconds: float, error: str = "") -> int:
    """Give sources back unpolled, due again in so many seconds; with an `error` that says why it is no failure."""
    held = Q()
    for source in sources:
        held |= _held(source)
    if not sources:
        return 0
    said = {"error": _words(error)} if error else {}
    return Source.objects.filter(held).update(polling_until=None, next_at=clock.after(seconds), **said)


def _words(text: str) -> str:
    """Strangers' words may have what no row can hold."""
    return str(storable(str(text)))[:2000]


def _held(source: Source) -> Q:
    return Q(id=source.id, polling_until=source.polling_until)


def source_polled(source: Source, polled: Polled, next_in_s: float) -> bool:
    """Write down a poll whose items were told; False when the lease is somebody else's by now, who does it again."""
    changes: dict[str, Any] = {"failures": 0, "error": _words(polled.note)}
    if polled.etag is not None:
        changes["etag"] = polled.etag
    if polled.modified is not None:
        changes["modified"] = polled.modified
    options: dict[str, Any] = {}
    if polled.location and polled.location != source.location:
        changes["location"] = polled.location
        options[MOVED] = source.location
    if polled.state is not None:
        options[STATE] = polled.state
    return _end(source, next_in_s, options, changes)


def source_failed(source: Source, error: str, next_in_s: float, *, gone: bool = False) -> bool:
    """Write down a poll that failed, or whose items nobody could be told of: they come again with the next."""
    changes: dict[str, Any] = {"failures": F("failures") + 1, "error": _words(error)}
    if gone:
        changes["enabled"] = False
    return _end(source, next_in_s, {}, changes)


def _end(source: Source, next_in_s: float, options: dict[str, Any], changes: dict[str, Any]) -> bool:
    with transaction.atomic():
        held = Source.objects.select_for_update(no_key=True).filter(_held(source))
        present = held.values_list("options", flat=True).first()
        if present is None:
            return False
        if options:  # edited meanwhile, the others stay as they are now
            changes["options"] = {**present, **options}
        if "location" in changes and not held.filter(location=source.location).exists():
            del changes["location"]
        times = {"polling_until": None, "checked_at": clock.now(), "next_at": clock.after(next_in_s)}
        return bool(Source.objects.filter(_held(source)).update(**times, **changes))
