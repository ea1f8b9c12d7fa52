"""Items that runs have not read: count them, and move them from an ended run to the next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from ravi_django.conf import conf
from ravi_django.models import ACTIVE, TERMINAL, InboxMessage, JournalEntry, Run, Signal, Source, Status
from ravi_django.runtime.db import clock
from ravi_django.runtime.runs.waking import touch

RUNS = 50  # the newest of a session, whose unread items are moved
LOOKED_AT = 200  # sources of one sweep
AFTER_FAILURE_S = 300.0  # from a run that failed until the sweep begins another; twice as long each time
LONGEST_S = 24 * 3600.0
_MOVED = 1_000  # signals of one statement

# It failed by a budget before it had done anything: its first item is not read.
_DONE = JournalEntry.objects.filter(run=OuterRef("id")).exclude(kind__in=["run.started", "llm.call", "run.failed"])
_UNTOUCHED = Q(
    ~Exists(_DONE),
    status=Status.FAILED,
    generation=0,
    input_tokens=0,
    output_tokens=0,
    error__type="BudgetExhaustedError",
)


@dataclass(slots=True)
class Unread:
    """Unread items of ended runs."""

    boot: dict[str, Any] | None = None  # the first message of the last one, when it has done nothing
    signals: list[tuple[int, str]] = field(default_factory=list)  # id and key, oldest first


def unread_in(source: Source, session_id: UUID) -> Unread:
    """The unread items of the agent's ended runs of this session, of all sources that deliver there."""
    same = {"agent": source.agent, "owner_id": source.owner_id, "tenant": source.tenant}
    runs = Run.objects.filter(session_id=session_id, parent=None, **same)
    newest = list(runs.order_by("-id").values_list("id", "status")[:RUNS])
    ended = [run_id for run_id, status in newest if status in TERMINAL]
    if not ended:
        return Unread()
    names = {source.signal, *Source.objects.filter(home_id=session_id, **same).values_list("signal", flat=True)}
    rows = Signal.objects.filter(run_id__in=ended, consumed_at=None, name__in=names).exclude(key="")
    return Unread(_untouched(ended[0]), list(rows.order_by("id").values_list("id", "key")))


def _untouched(run_id: UUID) -> dict[str, Any] | None:
    if not Run.objects.filter(_UNTOUCHED, id=run_id).exists():
        return None
    body = InboxMessage.objects.filter(run_id=run_id).order_by("id").values_list("body", flat=True).first() or {}
    payload = body.get("payload") or {}
    is_item = payload.get("kind") == "data" and "source_id" in (payload.get("data") or {})
    return body if is_item else None


def take_first(unread: Unread) -> tuple[str, Any]:
    """Consume the oldest: its key and its payload."""
    signal_id, key = unread.signals.pop(0)
    payload = Signal.objects.values_list("payload", flat=True).get(id=signal_id)
    Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now())
    return key, payload


def carry(unread: Unread, run_id: UUID) -> None:
    """Move the signals to another run in their order, before all that it gets later, and wake it."""
    there = set(Signal.objects.filter(run_id=run_id).exclude(key="").values_list("key", flat=True))
    ids: list[int] = []
    twice: list[int] = []
    for signal_id, key in unread.signals:
        (twice if key in there else ids).append(signal_id)
        there.add(key)
    for start in range(0, len(ids), _MOVED):
        part = Signal.objects.filter(id__in=ids[start : start + _MOVED], consumed_at=None)
        part.update(run_id=run_id, woke=True)
    Signal.objects.filter(id__in=twice, consumed_at=None).update(consumed_at=clock.now())
    if ids:
        touch([run_id])


def _roots() -> QuerySet[Run]:
    """Subquery of a query on sources."""
    return Run.objects.filter(session_id=OuterRef("home_id"), agent=OuterRef("agent"), parent=None)


def _newest(field: str, nth: int = 0) -> Subquery:
    return Subquery(_roots().exclude(status=Status.QUEUED).order_by("-id").values(field)[nth : nth + 1])


def full_sources(source_ids: Collection[UUID]) -> set[UUID]:
    """Those whose active or last run has RAVI["SOURCE_UNREAD"] of their items unread. One query."""
    alive = Subquery(_roots().filter(status__in=ACTIVE).values("id")[:1])
    rows = Source.objects.filter(id__in=source_ids, home__isnull=False)
    rows = rows.annotate(run=Coalesce(alive, _newest("id")))
    unread = Signal.objects.filter(run_id=OuterRef("run"), consumed_at=None, name=OuterRef("signal"))
    return set(rows.filter(Exists(_beyond(unread))).values_list("id", flat=True))


def is_full(run_id: UUID | str, name: str) -> bool:
    """Whether an active run has RAVI["SOURCE_UNREAD"] signals of this name unread."""
    rows = Signal.objects.filter(run_id=run_id, consumed_at=None, name=name).exclude(run__status__in=TERMINAL)
    return _beyond(rows).exists()


def _beyond(unread: QuerySet[Signal]) -> QuerySet[Signal]:
    most = max(1, int(conf.SOURCE_UNREAD))
    return unread.order_by("id")[most - 1 : most]


def left_unread(limit: int) -> list[UUID]:
    """Sources whose last run has ended with items unread, when it is time for another run. One query; of too many
    sources a random choice, so that those that wait cannot block the others."""
    unread = Signal.objects.filter(run_id=OuterRef("id"), consumed_at=None, name=OuterRef(OuterRef("signal")))
    ended = Run.objects.filter(Exists(unread.exclude(key="")) | _UNTOUCHED, id=OuterRef("run"), status__in=TERMINAL)
    rows = Source.objects.filter(enabled=True, home__isnull=False)
    rows = rows.annotate(run=_newest("id")).filter(Exists(ended), ~Exists(_roots().filter(status__in=ACTIVE)))
    rows = rows.annotate(
        present=clock.now(),
        last=_newest("status"),
        ended_at=_newest("finished_at"),
        begun_at=_newest("created_at"),
        before=_newest("status", 1),
        before_at=_newest("created_at", 1),
    )
    return [row.id for row in rows.only("id").order_by("?")[:LOOKED_AT] if _is_time(row)][:limit]


def _is_time(row: Any) -> bool:
    if row.last == Status.COMPLETED or row.ended_at is None:
        return True
    pause = AFTER_FAILURE_S
    if row.before in (Status.FAILED, Status.CANCELLED):
        pause = min(max(pause, 2 * (row.begun_at - row.before_at).total_seconds()), LONGEST_S)
    return bool(row.ended_at + timedelta(seconds=pause) <= row.present)
