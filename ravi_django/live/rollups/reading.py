"""The figures of the dashboard: rollups, and the present runs, requests and workers. Five queries for any
number of runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Count,
    DateTimeField,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
    Window,
)
from django.db.models.functions import Cast, NullIf
from django.utils import timezone

from ravi_django.engine.db import clock
from ravi_django.live.rollups.counting import starts
from ravi_django.models import TERMINAL, HumanRequest, Rollup, Run, Status, SweepState, WorkerProcess
from ravi_django.models.rollup import BOUNDS

LIVE = [status for status in Status if status not in TERMINAL]
USERS = 10  # those with the highest cost
REQUESTS = 10  # the oldest
DAYS = (1, 7, 30, 90)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of a dashboard; an empty one selects everything."""

    days: int = 1  # the period: so many days in the site's zone, today included
    agent: str = ""  # address
    model: str = ""  # logical model name; runs are not counted by model
    user: str = ""  # primary key
    tenants: Collection[str] | None = None  # None: all


@dataclass(slots=True)
class Times:
    """How many times were in each bucket of BOUNDS."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def percentile(self, share: float) -> float | None:
        """Seconds, interpolated within a bucket: at most the width of the bucket away from the exact value. None
        without a time. A time above the last bound counts as that bound."""
        rank, lower = share * sum(self.counts), 0.0
        for count, upper in zip(self.counts, (*BOUNDS, BOUNDS[-1]), strict=True):
            if count and rank <= count:
                return lower + (upper - lower) * rank / count
            rank, lower = rank - count, upper
        return None


@dataclass(slots=True)
class Tally:
    """Runs that have ended, or model calls."""

    completed: int = 0  # or calls with an answer
    failed: int = 0
    cancelled: int = 0
    times: Times = field(default_factory=Times)  # at work, or of the call; without cancelled runs

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.cancelled

    def add(self, outcome: str, bucket: int, count: int) -> None:
        name = {"ok": "completed", "error": "failed"}.get(outcome, outcome)
        setattr(self, name, getattr(self, name) + count)
        if name != "cancelled":
            self.times.counts[bucket] += count


@dataclass(slots=True)
class Figures:
    """Everything that is counted for one agent, model, hour or day."""

    runs: Tally = field(default_factory=Tally)
    calls: Tally = field(default_factory=Tally)
    tokens: int = 0  # input and output
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    cost: Decimal = Decimal(0)  # US dollars, the known part
    unpriced: int = 0  # calls whose price was unknown
    waited_s: float = 0.0  # that calls waited for the limits of their models
    unused: Decimal = Decimal(0)  # of the cost: requests without an answer that was used

    def add(self, row: dict[str, Any]) -> None:
        self.tokens += row["tokens"]
        self.input_tokens += row["sum_input"]
        self.cached_tokens += row["sum_cached"]
        self.cost += row["cost"]
        self.unpriced += row["unpriced"]
        self.waited_s += row["waited_s"]
        self.unused += row["cost"] if row["outcome"] != "ok" else 0
        if row["outcome"] != "unused":
            tally = self.calls if row["is_call"] else self.runs
            tally.add(row["outcome"], row["bucket"], row["count"])


@dataclass(frozen=True, slots=True)
class UserFigures:
    key: str  # primary key; empty: the system and deleted users
    name: str  # empty: unknown
    runs: int
    failed: int
    calls: int
    tokens: int
    cost: Decimal
    unpriced: int


@dataclass(slots=True)
class Dashboard:
    begin: datetime  # of the period, in the site's zone
    now: datetime
    slots: dict[datetime, Figures]  # by the beginning of each hour or day, in the site's zone
    hourly: bool
    total: Figures = field(default_factory=Figures)
    before: Figures = field(default_factory=Figures)  # of the period before; for a day up to the same hour
    agents: dict[str, Figures] = field(default_factory=dict)
    models: dict[str, Figures] = field(default_factory=dict)
    users: list[UserFigures] = field(default_factory=list)
    live: dict[str, int] = field(default_factory=dict)  # runs that have not ended, by status
    workers: list[tuple[str, int, datetime]] = field(default_factory=list)  # name, leases, last heartbeat
    swept_at: datetime | None = None
    requests: list[HumanRequest] = field(default_factory=list)  # the oldest pending ones
    open_requests: int = 0


def read(wanted: Wanted, requests: QuerySet[HumanRequest] | None = None) -> Dashboard:
    """The dashboard. `requests` are the rows that the reader may see."""
    now = clock.fixed() or timezone.now()
    hourly = wanted.days == 1 and not wanted.user
    begin = day_of(now, 1 - wanted.days)
    dashboard = Dashboard(begin, _local(now), {at: Figures() for at in _slots(begin, day_of(now, 1), hourly)}, hourly)
    _read_slots(dashboard, wanted)
    _read_parts(dashboard, wanted)
    dashboard.users = _users(wanted, begin)
    _read_present(dashboard, wanted)
    if requests is not None:
        _read_requests(dashboard, wanted, requests)
    return dashboard


_IS_CALL = Case(When(model="", then=Value(0)), default=Value(1))
_SUMS = {
    "tokens": Sum(F("input_tokens") + F("output_tokens")),
    **{f"sum_{name}": Sum(f"{name}_tokens") for name in ("input", "cached")},
    **{name: Sum(name) for name in ("count", "cost", "unpriced", "waited_s")},
}


def _rollups(wanted: Wanted, since: datetime, span: str = Rollup.Span.DAY) -> QuerySet[Any]:
    rows: Any = Rollup.objects.filter(span=span, start__gte=since).order_by()
    if wanted.user:
        rows = rows.filter(user=wanted.user)
    filtered: QuerySet[Any] = rows if wanted.tenants is None else rows.filter(tenant__in=wanted.tenants)
    return filtered


def _of_agent_and_model(rows: QuerySet[Any], wanted: Wanted) -> QuerySet[Any]:
    rows = rows.filter(agent=wanted.agent) if wanted.agent else rows
    return rows.filter(model=wanted.model) if wanted.model else rows


def _read_slots(dashboard: Dashboard, wanted: Wanted) -> None:
    """The period and the one before, by hour or day."""
    span = Rollup.Span.HOUR if dashboard.hourly else Rollup.Span.DAY
    rows = _rollups(wanted, day_of(dashboard.begin, -wanted.days), span)
    if dashboard.hourly:  # of the day before, only the hours that have come today too
        gone = dashboard.now.astimezone(UTC) - dashboard.begin.astimezone(UTC)
        rows = rows.filter(Q(start__gte=dashboard.begin) | Q(start__lt=day_of(dashboard.begin, -1) + gone))
    rows = _of_agent_and_model(rows, wanted).values("start", "outcome", "bucket", is_call=_IS_CALL)
    for row in rows.annotate(**_SUMS):
        if row["start"] < dashboard.begin:
            dashboard.before.add(row)
            continue
        dashboard.total.add(row)
        hour, day = starts(row["start"])
        if (slot := dashboard.slots.get(hour if dashboard.hourly else day)) is not None:
            slot.add(row)


def _read_parts(dashboard: Dashboard, wanted: Wanted) -> None:
    """All agents and models of the period, also those that the filters leave out of the other figures: a page offers
    them."""
    rows = _rollups(wanted, dashboard.begin).values("agent", "model", "outcome", "bucket", is_call=_IS_CALL)
    for row in rows.annotate(**_SUMS):
        agent, model = row["agent"], row["model"]
        if model in ("", wanted.model) or not wanted.model:
            dashboard.agents.setdefault(agent, Figures()).add(row)
        if model and (agent == wanted.agent or not wanted.agent):
            dashboard.models.setdefault(model, Figures()).add(row)


def _users(wanted: Wanted, since: datetime) -> list[UserFigures]:
    users: Any = get_user_model()
    key = Cast(NullIf(OuterRef("user"), Value("")), users._meta.pk)
    name = users._base_manager.filter(pk=key).values(users.USERNAME_FIELD)[:1]
    is_call = Q(outcome__in=["ok", "error"])
    rows = (
        _of_agent_and_model(_rollups(wanted, since), wanted)
        .values("user")
        .annotate(
            **{name: _SUMS[name] for name in ("tokens", "cost", "unpriced")},
            runs=Sum("count", filter=Q(model=""), default=0),
            failed=Sum("count", filter=Q(model="", outcome=Status.FAILED), default=0),
            calls=Sum("count", filter=is_call, default=0),
        )
    )
    rows = rows.annotate(name=Subquery(name)).order_by("-cost", "-tokens", "-runs", "user")
    return [UserFigures(row.pop("user"), row.pop("name") or "", **row) for row in rows[:USERS]]


_WORKER, _SWEEP = "worker", "sweep"


def _read_present(dashboard: Dashboard, wanted: Wanted) -> None:
    """Live runs, workers and the sweep, in one query. A part for each status: each reads an index of its own."""
    rows: Any = Run.objects.order_by()
    rows = rows.filter(agent=wanted.agent) if wanted.agent else rows
    rows = rows.filter(owner=wanted.user) if wanted.user else rows
    rows = rows if wanted.tenants is None else rows.filter(tenant__in=wanted.tenants)
    shape = ("kind", "called", "number", "at")
    text, moment = CharField(), DateTimeField()
    none = Cast(Value(None), moment)
    parts: list[Any] = [
        rows.filter(status=status)
        .values("status")
        .annotate(kind=Value("run", text), called=Cast("status", text), number=Count("id"), at=none)
        for status in LIVE
    ]
    parts += [
        WorkerProcess.objects.annotate(
            kind=Value(_WORKER, text), called=F("name"), number=Cast("runs", BigIntegerField()), at=F("seen_at")
        ),
        SweepState.objects.annotate(
            kind=Value(_SWEEP, text),
            called=Value("", text),
            number=Value(0, BigIntegerField()),
            at=F("ran_at"),
        ),
    ]
    first, *others = [part.order_by().values_list(*shape) for part in parts]
    for kind, called, number, at in first.union(*others, all=True).order_by():  # Django 6.1 would order it by Run
        match kind:
            case "run":
                dashboard.live[called] = number
            case "worker":
                dashboard.workers.append((called, number, at))
            case "sweep":
                dashboard.swept_at = at
    dashboard.workers.sort()


def _read_requests(dashboard: Dashboard, wanted: Wanted, rows: QuerySet[Any]) -> None:
    rows = rows.filter(status=HumanRequest.Status.PENDING)
    rows = rows.filter(run__agent=wanted.agent) if wanted.agent else rows
    rows = rows.filter(owner=wanted.user) if wanted.user else rows
    oldest: Any = rows.select_related("run").annotate(total=Window(Count("pk"))).order_by("id")[:REQUESTS]
    dashboard.requests = list(oldest)
    dashboard.open_requests = dashboard.requests[0].total if dashboard.requests else 0  # type: ignore[attr-defined]


def _local(at: datetime) -> datetime:
    return timezone.localtime(at, timezone.get_default_timezone())


def day_of(at: datetime, later: int) -> datetime:
    """The beginning of a day in the site's zone, so many days later."""
    day = _local(at).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=later)
    return timezone.make_aware(day, timezone.get_default_timezone())


def _slots(begin: datetime, end: datetime, hourly: bool) -> Iterator[datetime]:
    at = begin
    while at < end:
        yield at
        at = _local(at.astimezone(UTC) + timedelta(hours=1)) if hourly else day_of(at, 1)
