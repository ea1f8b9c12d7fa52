"""Rows of the outbox on their way to the event bus: the next ones, the sent ones and the refused ones."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Q, QuerySet

from ravi_django.db import Bytes, connection
from ravi_django.models import OutboxEvent
from ravi_django.runtime.db import clock

_LOCK = 0x72627573  # "rbus"


def alone() -> bool:
    """On PostgreSQL: whether no other relay works, for the rest of this transaction. Two at once would mix up the
    order. The server ends the session of a relay whose process hangs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        is_alone = bool(cursor.fetchone()[0])
        if is_alone:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '30s'")
    return is_alone


def _due() -> QuerySet[OutboxEvent]:
    """The rows to relay now. A refused one waits for its time and holds up no other."""
    return OutboxEvent.objects.filter(Q(again_at__isnull=True) | Q(again_at__lte=clock.now())).order_by("id")


def waiting(limit: int, most: int) -> list[OutboxEvent]:
    """The next rows to relay, in order: at most `limit` rows and `most` bytes of bodies, but always one row."""
    ids: list[int] = []
    total = 0
    for id, size in _due().values_list("id", Bytes("body"))[:limit]:
        total += size
        if ids and total > most:
            break
        ids.append(id)
    return list(OutboxEvent.objects.filter(id__in=ids).order_by("id"))


def forget(rows: Sequence[OutboxEvent]) -> None:
    """Delete rows that the bus has."""
    OutboxEvent.objects.filter(id__in=[row.pk for row in rows]).delete()


TRIES = 5  # after so many a row counts as refused: the operator must look at it
AGAIN_S = (5.0, 3600.0)  # until a refused row is sent again: doubling, from and to


def refuse(row: OutboxEvent, why: str) -> None:
    """Send the row again later, also after its last try: the cause may be fixed by then."""
    first, most = AGAIN_S
    pause = min(most, first * 2**row.tries) if row.tries + 1 < TRIES else most
    tries = min(row.tries + 1, 1000)
    OutboxEvent.objects.filter(id=row.pk).update(tries=tries, error=why[:1000], again_at=clock.after(pause))


def is_empty() -> bool:
    """Whether there is nothing to relay now."""
    return not _due().exists()


MANY = 100_000  # rows counted at most


def refused() -> tuple[int, str]:
    """How many events the bus has refused TRIES times, MANY at most, and the error of the first."""
    rows = OutboxEvent.objects.filter(tries__gte=TRIES)
    if (first := rows.order_by("id").values_list("topic", "error").first()) is None:
        return 0, ""
    return rows.order_by()[:MANY].count(), f"topic {first[0]!r}: {first[1]}"


def backlog() -> tuple[int, float]:
    """How many events wait, MANY at most and without the `refused` ones, and the age of the oldest in seconds."""
    return _waiting(OutboxEvent.objects.filter(tries__lt=TRIES))


def stranded() -> tuple[int, float]:
    """The same for all events: for a site that relays none."""
    return _waiting(OutboxEvent.objects.all())


def _waiting(rows: QuerySet[OutboxEvent]) -> tuple[int, float]:
    count = rows.order_by()[:MANY].count()
    oldest = rows.order_by("id").annotate(age=clock.age("created_at")).values_list("age", flat=True).first()
    return (count, max(0.0, oldest.total_seconds())) if oldest is not None else (0, 0.0)


def old_events(older_than_s: float) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.filter(created_at__lt=clock.after(-older_than_s))
