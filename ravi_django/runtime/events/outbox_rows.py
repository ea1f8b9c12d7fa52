"""The outbox's rows on their way to the event bus: which are next, which it has, and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import BigIntegerField, DurationField, ExpressionWrapper, F, Func, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ravi_django.db import connection
from ravi_django.models import OutboxEvent
from ravi_django.runtime.db import clock

_LOCK = 0x72627573  # "rbus"


def alone() -> bool:
    """Whether nobody else relays, for the rest of this transaction: two at once would mix up the order. A relay whose
    process stands still is thrown out by the server."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        is_alone = bool(cursor.fetchone()[0])
        if is_alone:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '30s'")
    return is_alone


class _Bytes(Func):
    """Of a body as text: counted by the server, so that no more than a batch is read."""

    function = "octet_length"
    output_field = BigIntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="length(CAST(%(expressions)s AS BLOB))", **extra)


def _due() -> QuerySet[OutboxEvent]:
    """What the bus has refused waits for its time, and holds up nobody."""
    return OutboxEvent.objects.filter(Q(again_at__isnull=True) | Q(again_at__lte=clock.now())).order_by("id")


def waiting(limit: int, most: int) -> list[OutboxEvent]:
    """The next rows to relay, in their order: `limit` of them, and `most` bytes of bodies, but always one."""
    ids: list[int] = []
    total = 0
    for id, size in _due().values_list("id", _Bytes(Cast("body", TextField())))[:limit]:
        total += size
        if ids and total > most:
            break
        ids.append(id)
    return list(OutboxEvent.objects.filter(id__in=ids).order_by("id"))


def forget(rows: Sequence[OutboxEvent]) -> None:
    """The bus has them."""
    OutboxEvent.objects.filter(id__in=[row.pk for row in rows]).delete()


TRIES = 5  # then a row counts as refused, which somebody has to see to
AGAIN_S = (5.0, 3600.0)  # until a refused row is given to the bus again: doubling, from and to


def refuse(row: OutboxEvent, why: str) -> None:
    """The bus does not take this one: it comes again later, also beyond its tries, in case what was wrong is fixed."""
    first, most = AGAIN_S
    pause = min(most, first * 2**row.tries) if row.tries + 1 < TRIES else most
    tries = min(row.tries + 1, 1000)
    OutboxEvent.objects.filter(id=row.pk).update(tries=tries, error=why[:1000], again_at=clock.after(pause))


def is_empty() -> bool:
    """Whether there is nothing to relay now."""
    return not _due().exists()


MANY = 100_000  # no more rows are counted


def refused() -> tuple[int, str]:
    """How many events the bus has refused for good, MANY at most, and what it says of the first."""
    rows = OutboxEvent.objects.filter(tries__gte=TRIES)
    if (first := rows.order_by("id").values_list("topic", "error").first()) is None:
        return 0, ""
    return rows.order_by()[:MANY].count(), f"topic {first[0]!r}: {first[1]}"


def backlog() -> tuple[int, float]:
    """How many events wait, MANY at most and without those `refused`, and for how many seconds the oldest does."""
    return _waiting(OutboxEvent.objects.filter(tries__lt=TRIES))


def stranded() -> tuple[int, float]:
    """The same of all events, where nothing relays them."""
    return _waiting(OutboxEvent.objects.all())


def _waiting(rows: QuerySet[OutboxEvent]) -> tuple[int, float]:
    count = rows.order_by()[:MANY].count()
    age = ExpressionWrapper(clock.now() - F("created_at"), output_field=DurationField())
    oldest = rows.order_by("id").annotate(age=age).values_list("age", flat=True).first()
    return (count, max(0.0, oldest.total_seconds())) if oldest is not None else (0, 0.0)


ROWS = 5_000  # deleted in one statement, at most


def old_events(older_than_s: float) -> QuerySet[OutboxEvent]:
    return OutboxEvent.objects.filter(created_at__lt=clock.after(-older_than_s))


def prune_events(older_than_s: float) -> int:
    """Delete at most ROWS of them; returns how many. Call it until that is 0."""
    found = list(old_events(older_than_s).order_by("id").values_list("id", flat=True)[:ROWS])
    return OutboxEvent.objects.filter(id__in=found).delete()[0]
