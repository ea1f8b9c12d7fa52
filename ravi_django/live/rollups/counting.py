"""Count what runs have done into rollup rows: their ends, their model calls, tokens and cost.

A claim marks the run (`AfterLease`). Once the lease has ended, the sweep counts the run's new journal rows and raises
`counted_seq` or deletes the mark in the same transaction. A sweep that dies counts nothing, and two sweeps skip each
other's runs. A retried run has several ends; each counts in the hour in which it happened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, ExpressionWrapper, F, FloatField, Q, QuerySet, TextField, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from ravi_django.db import connection, transaction
from ravi_django.engine.journal.append import unmark
from ravi_django.engine.lease.claims import skip_locked
from ravi_django.models import TERMINAL, UNPUBLISHED, JournalEntry, Run, Status
from ravi_django.models.rollup import BOUNDS, Rollup

BATCH = 500  # runs in one transaction
BATCHES = 10  # in one sweep
ROWS = 500  # in one statement
ENDS = {f"run.{status}": str(status) for status in TERMINAL}

_FAILED = ExpressionWrapper(Q(error__isnull=False), output_field=BooleanField())
_WAITED_S = Case(When(kind="llm.call", then=Cast(KT("request__waited_s"), FloatField())))
_HANDED_OVER_BY = Case(When(kind="run.handoff", then=KT("result__from")), output_field=TextField())

Key = tuple[Any, ...]  # the values of Rollup.KEY
Sums = list[Any]  # the values of Rollup.SUMS


def sweep() -> int:
    """Count the marked runs, at most BATCHES * BATCH of them; returns how many."""
    total = 0
    for _ in range(BATCHES):
        counted = count(Run.objects.all())
        total += counted
        if counted < BATCH:
            break
    return total


def count(runs: QuerySet[Run]) -> int:
    """Count at most BATCH marked runs of these in one transaction; returns how many. A run with a lease is counted when
    the lease has ended."""
    with transaction.atomic():
        marked = runs.filter(after_lease__isnull=False).exclude(status=Status.RUNNING)
        marked = marked.exclude(UNPUBLISHED, counted_seq=F("next_seq") - 1)  # counted, and still to be published
        by_id = {run.id: run for run in skip_locked(marked).only(*_OF_RUN)[:BATCH]}
        if not by_id:
            return 0
        batch = _Batch(by_id)
        rows = JournalEntry.objects.filter(run__in=by_id, seq__gt=F("run__counted_seq")).order_by("run_id", "-seq")
        for row in (
            rows.annotate(handed_over_by=_HANDED_OVER_BY, failed=_FAILED, waited_s=_WAITED_S)
            .values(*_READ, "handed_over_by", "failed", "waited_s")
            .iterator()
        ):
            batch.add(row)
        write(batch.rollups())
        unpublished = {run.id for run in by_id.values() if run.is_unpublished}
        again = [run for run in by_id.values() if run.status not in _FINAL or run.id in unpublished]
        if again:
            worked = [When(id=run.id, then=Value(run.work_s)) for run in again if run.id in batch.worked]
            counted = {"counted_seq": F("next_seq") - 1, "work_s": Case(*worked, default=F("work_s"))}
            Run.objects.filter(id__in=[run.id for run in again]).update(**counted)
        unmark(set(by_id) - unpublished)
        return len(by_id)


_OF_RUN = ("agent", "tenant", "owner", "work_s", "status", "parent", "finished_at", "published_at")
_FINAL = (Status.COMPLETED, Status.CANCELLED)  # never retried: without its mark such a run is not looked at again
_USED = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_READ = (
    "run_id",
    "epoch",
    "kind",
    "name",
    "failed",
    "started_at",
    "finished_at",
    *_USED,
    "cost",
    "handed_over_by",
    "waited_s",
)


class _Batch:
    """Collects the rows of some runs, the latest of each run first."""

    def __init__(self, runs: Mapping[UUID, Run]) -> None:
        self._runs = runs
        self._agents = {run.id: run.agent for run in runs.values()}
        self._leases: dict[tuple[UUID, int], tuple[datetime, datetime]] = {}
        self._ends: list[tuple[Run, str, str, datetime]] = []
        self._sums: dict[Key, Sums] = defaultdict(lambda: [0] * len(Rollup.SUMS))
        self.worked: set[UUID] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        run, kind = self._runs[row["run_id"]], row["kind"]
        lease = run.id, row["epoch"]
        begun, done = self._leases.get(lease, (row["started_at"], row["finished_at"]))
        self._leases[lease] = min(begun, row["started_at"]), max(done, row["finished_at"])
        if kind == "run.handoff" and row["handed_over_by"]:  # it and the rows before are the other agent's
            self._agents[run.id] = row["handed_over_by"]
        if kind in ENDS:
            self._ends.append((run, self._agents[run.id], ENDS[kind], row["finished_at"]))
        elif kind == "llm.call" or row["input_tokens"] is not None:
            self._add_call(run, row)

    def _add_call(self, run: Run, row: Mapping[str, Any]) -> None:
        outcome = "unused" if row["kind"] != "llm.call" else "error" if row["failed"] else "ok"
        seconds = (row["finished_at"] - row["started_at"]).total_seconds()
        used = [row[name] or 0 for name in _USED]
        unpriced = int(row["input_tokens"] is not None and row["cost"] is None)
        sums = [1, *used, row["cost"] or 0, unpriced, row["waited_s"] or 0]
        self._add(run, self._agents[run.id], row["name"], outcome, row["finished_at"], seconds, sums)

    def _add(self, run: Run, agent: str, model: str, outcome: str, at: datetime, seconds: float, sums: Sums) -> None:
        bucket = bisect_left(BOUNDS, seconds)
        user = "" if run.owner_id is None else str(run.owner_id)
        hour, day = starts(at)
        for key in (
            (Rollup.Span.HOUR, hour, run.tenant, agent, model, "", outcome, bucket),
            (Rollup.Span.DAY, day, run.tenant, agent, model, user, outcome, bucket),
        ):
            self._sums[key] = [before + more for before, more in zip(self._sums[key], sums, strict=True)]

    def rollups(self) -> Mapping[Key, Sums]:
        """The work of a lease lasts from its first row to its last: a run that waits has no lease."""
        for (run_id, _), (begun, done) in self._leases.items():
            seconds = (done - begun).total_seconds()
            if seconds > 0:
                self.worked.add(run_id)
                self._runs[run_id].work_s += seconds
        for run, agent, outcome, at in self._ends:
            self._add(run, agent, "", outcome, at, run.work_s, [1] + [0] * (len(Rollup.SUMS) - 1))
        return self._sums


def starts(at: datetime) -> tuple[datetime, datetime]:
    """The beginnings of the hour and of the day in the site's zone."""
    hour = timezone.localtime(at, timezone.get_default_timezone()).replace(minute=0, second=0, microsecond=0)
    return hour, hour.replace(hour=0, fold=0)


def write(rollups: Mapping[Key, Sums]) -> None:
    """Add to the rows, or create them. In the order of the keys: two writers must not deadlock."""
    rows = sorted(rollups.items())
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        with connection.cursor() as cursor:
            cursor.execute(_upsert(len(some)), [value for key, sums in some for value in _prepared((*key, *sums))])


def _prepared(values: Key) -> Iterator[Any]:
    for name, value in zip((*Rollup.KEY, *Rollup.SUMS), values, strict=True):
        field: Any = Rollup._meta.get_field(name)
        yield field.get_db_prep_save(value, connection)


def _upsert(rows: int) -> str:
    names = (*Rollup.KEY, *Rollup.SUMS)
    row = f"({', '.join(['%s'] * len(names))})"
    sums = ", ".join(f'"{name}" = ravi_rollup."{name}" + excluded."{name}"' for name in Rollup.SUMS)
    return (
        f"INSERT INTO ravi_rollup ({_quoted(names)}) VALUES {', '.join([row] * rows)} "  # noqa: S608 - own constants
        f"ON CONFLICT ({_quoted(Rollup.KEY)}) DO UPDATE SET {sums}"
    )


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def forget_user(user: str) -> None:
    """Move the counts of a user to the rows without a user, in batches."""
    while True:
        with transaction.atomic():
            rows = list(Rollup.objects.select_for_update().filter(user=user).order_by(*Rollup.KEY)[:ROWS])
            if not user or not rows:
                return
            moved: dict[Key, Sums] = defaultdict(lambda: [0] * len(Rollup.SUMS))
            for row in rows:
                row.user = ""
                key = tuple(getattr(row, name) for name in Rollup.KEY)
                moved[key] = [before + getattr(row, name) for before, name in zip(moved[key], Rollup.SUMS, strict=True)]
            write(moved)
            Rollup.objects.filter(pk__in=[row.pk for row in rows]).delete()
