"""Claim the sources that are due, and write the results of polls.

`polling_until` is a poller's lease of the source. A result is written only if that time is unchanged. If a poller is
killed, the items it delivered stay delivered, and the source is due again after that time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import F, Q, QuerySet

from ravi_django.capabilities.feeds.adapter import Polled
from ravi_django.db import transaction
from ravi_django.kernel.json_values import storable
from ravi_django.models import Source
from ravi_django.runtime.db import clock

STATE = "state"  # the option that holds an adapter's state
MOVED = "moved_from"  # the option that holds a feed's address before it moved


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
    """Lease up to `limit` due sources for `lease_s` seconds, without those that another poller is claiming."""
    with transaction.atomic():
        rows = _due(kinds).select_for_update(skip_locked=True, no_key=True)
        oldest = F("next_at").asc(nulls_first=True)
        ids = [row.id for row in rows.order_by(oldest, "id").only("id")[:limit]]
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        return list(Source.objects.filter(id__in=ids).order_by(oldest, "id"))


def renew_sources(sources: Sequence[Source], lease_s: float) -> None:
    """Renew the leases that no other poller has taken over. The new time goes into `polling_until` of `sources`."""
    with transaction.atomic():
        rows = Source.objects.select_for_update(no_key=True).filter(_held(*sources)).order_by("id")
        ids = list(rows.values_list("id", flat=True))
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        until = dict(Source.objects.filter(id__in=ids).values_list("id", "polling_until"))
    for source in sources:
        source.polling_until = until.get(source.id, source.polling_until)


def put_off(sources: Sequence[Source], seconds: float, error: str = "") -> int:
    """End the leases without a poll; the sources are due again in `seconds`. An `error` here is not a failure."""
    words = {"error": _storable(error)} if error else {}
    return Source.objects.filter(_held(*sources)).update(polling_until=None, next_at=clock.after(seconds), **words)


def _storable(text: str) -> str:
    return str(storable(str(text)))[:2000]


def _held(*sources: Source) -> Q:
    held = Q(id__in=[])
    for source in sources:
        held |= Q(id=source.id, polling_until=source.polling_until)
    return held


def source_polled(source: Source, polled: Polled, next_in_s: float) -> bool:
    """Write a poll whose items were delivered. False: another poller has the lease now, and repeats the poll."""
    changes: dict[str, Any] = {"failures": 0, "error": _storable(polled.note)}
    if polled.etag is not None:
        changes["etag"] = polled.etag
    if polled.modified is not None:
        changes["modified"] = polled.modified
    options: dict[str, Any] = {} if polled.state is None else {STATE: polled.state}
    if polled.location and polled.location != source.location:
        changes["location"] = polled.location
        options[MOVED] = source.location
    return _end(source, next_in_s, options, changes)


def source_failed(source: Source, error: str, next_in_s: float, *, gone: bool = False) -> bool:
    """Write a poll that failed, or whose items could not be delivered: the next poll reads them again."""
    off = {"enabled": False} if gone else {}
    return _end(source, next_in_s, {}, {"failures": F("failures") + 1, "error": _storable(error), **off})


def _end(source: Source, next_in_s: float, options: dict[str, Any], changes: dict[str, Any]) -> bool:
    with transaction.atomic():
        held = Source.objects.select_for_update(no_key=True).filter(_held(source))
        present = held.values_list("options", flat=True).first()
        if present is None:
            return False
        if options:  # a person may have edited the other options meanwhile
            changes["options"] = {**present, **options}
        if "location" in changes and not held.filter(location=source.location).exists():
            del changes["location"]
        times = {"polling_until": None, "checked_at": clock.now(), "next_at": clock.after(next_in_s)}
        return bool(Source.objects.filter(_held(source)).update(**times, **changes))
