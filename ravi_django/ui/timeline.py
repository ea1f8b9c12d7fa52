"""The timeline of a run's tree: a lane for each run and each of its effects, with bars on one time axis.

An effect's attempts and phases are bars of one lane. A child's lanes come where its parent spawned it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby, zip_longest
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from ravi_django.conf import conf
from ravi_django.kernel.visible import visible
from ravi_django.models import Phase, Run, Status
from ravi_django.pages import formats
from ravi_django.ui.axis import Axis, Span, percent
from ravi_django.ui.journal import Row

DEEPEST = 8  # the style sheet has so many steps
NARROWEST = 0.4  # per cent
# What only the replay needs; "Everything" shows it.
_QUIET = (
    *("now", "random", "uuid", "pinned", "log", "log_once", "chat.output"),
    *("history.read", "history.count", "replay.drift"),
)
_QUIET_LIFE = ("run.started", "run.resumed", "run.completed", "request.opened", "request.closed")
_WAITS = ("ask", "signal", "timer", "approval", "ask_human")
_OF_LEASES = ("run.started", "run.resumed", "llm.call", "tool.call")
KINDS: dict[str, Any] = {
    "": gettext_lazy("Steps"),
    "all": gettext_lazy("Everything"),
    "failed": gettext_lazy("Failed"),
    "model": gettext_lazy("Models"),
    "tool": gettext_lazy("Tools"),
    "wait": gettext_lazy("Waits"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    tone: str  # the class
    begin: datetime
    end: datetime


@dataclass(slots=True)
class Lane:
    tone: str  # run, model, tool, wait or note
    depth: int
    run: Run
    rows: list[Row] = field(default_factory=list)  # of the effect
    state: str = ""  # a word: failed, running or waiting; a run's status
    bars: list[Bar] = field(default_factory=list)
    lost: list[datetime] = field(default_factory=list)  # takeovers
    took: timedelta | None = None
    cost: Decimal | None = None
    is_quiet: bool = False

    @property
    def id(self) -> str:
        """With the number of the first entry; 0 for a run."""
        return f"{self.run.id}.{self.rows[0].seq if self.rows else 0}"


@dataclass(frozen=True, slots=True)
class Lease:
    worker: str
    begin: datetime
    end: datetime


class Timeline:
    """`now` ends what is still open."""

    def __init__(self, runs: list[Run], rows: Iterable[Row], now: datetime, *, is_whole: bool = False) -> None:
        self._now = now
        self._runs = {run.id: run for run in runs}
        self._rows = {run_id: list(group) for run_id, group in groupby(rows, key=lambda row: row.run_id)}
        self.leases: list[Lease] = []
        self.lost: list[datetime] = []
        self._waits: dict[Row, Bar] = {}  # of the rows of suspensions
        self._taken: dict[Row, datetime] = {}  # when the worker of this row took over
        self._gone: dict[Row, Bar] = {}  # by the same row: what the lost worker did after its last entry
        self._tops = {run.id: self._run_lane(run) for run in runs}
        self._children: dict[UUID, list[Run]] = {}
        for run in runs:
            if run.parent_id in self._runs:
                self._children.setdefault(run.parent_id, []).append(run)
        self.lanes = list(self._ordered(next(run for run in runs if run.parent_id not in self._runs)))
        spans: list[Span] = [(lease.begin, lease.end) for lease in self.leases]
        spans += [(bar.begin, bar.end) for lane in self.lanes for bar in lane.bars if lane.tone in ("model", "tool")]
        first = min((run.created_at for run in runs), default=now)
        last = max((run.finished_at or now for run in runs), default=now)
        self.axis = Axis(spans, first, max(first, last), is_whole=is_whole)

    @property
    def takeovers(self) -> int:
        return len(self.lost)

    @property
    def workers(self) -> int:
        return len({lease.worker for lease in self.leases})

    def chosen(self, kind: str, matches: set[tuple[UUID, int]] | None) -> list[Lane]:
        """The lanes of a kind, and a search's matches, each with its run. A search without a kind is in everything."""
        keeps = _KEEPS.get(kind or ("all" if matches is not None else ""), _KEEPS[""])
        lanes = [
            lane
            for lane in self.lanes
            if lane.tone == "run"
            or (keeps(lane) and (matches is None or any((row.run_id, row.seq) in matches for row in lane.rows)))
        ]
        if matches is None and kind in ("", "all"):
            return lanes
        used = {lane.run.id for lane in lanes if lane.tone != "run"}
        return [lane for lane in lanes if lane.tone != "run" or lane.run.id in used]

    # ------------------------------------------------------------------------------------------------ lanes

    def _ordered(self, root: Run) -> Iterator[Lane]:
        """Each run's lane, its effects, and its children where they were spawned. Iterative: a tree may be deep."""
        stack: list[Iterator[Lane | Run]] = [iter([root])]
        while stack:
            match next(stack[-1], None):
                case None:
                    stack.pop()
                case Lane() as lane:
                    yield lane
                case run:
                    stack.append(self._block(run))

    def _block(self, run: Run) -> Iterator[Lane | Run]:
        yield self._tops[run.id]
        left = {child.id: child for child in self._children.get(run.id, ())}
        lanes = [self._effect_lane(run, rows) for rows in _effects(self._rows.get(run.id, []))]
        waits = [
            bar for lane in lanes if lane.rows[0] not in self._waits for bar in lane.bars if bar.tone == "bar-wait"
        ]
        for lane in lanes:
            spawned = [left.pop(_id(row.about)) for row in lane.rows if _id(row.about) in left]
            lane.is_quiet |= bool(spawned)  # the child's own lane says it
            if (wait := self._waits.get(lane.rows[0])) is not None:  # an effect's own lane may say it
                lane.is_quiet = any(bar.begin <= wait.begin and wait.end <= bar.end for bar in waits)
            yield lane
            yield from spawned
        yield from left.values()

    def _run_lane(self, run: Run) -> Lane:
        """Its leases, by the epochs of its rows, and its waits between them."""
        lane = Lane("run", min(run.depth, DEEPEST), run, state=run.status)
        lane.cost = run.cost if run.input_tokens or run.output_tokens else None
        rows = self._rows.get(run.id, [])
        end = run.finished_at or self._now
        lane.took = end - run.created_at
        held = [list(group) for _, group in groupby(rows, key=lambda row: row.epoch)]
        held = [group for group in held if any(row.kind in _OF_LEASES for row in group)]
        is_running = run.status == Status.RUNNING
        for group, after in zip_longest(held, held[1:]):
            first = next((row for row in group if row.kind in ("run.started", "run.resumed")), group[0])
            begin, last = min(row.started_at for row in group), max(row.finished_at for row in group)
            if is_running and after is None and first.epoch == run.lease_epoch:
                last = max(last, self._now)
            if (taken := next((row for row in after or () if row.about.get("after")), None)) is not None:
                last = self._lost_attempt(taken, last)
            self._lease(lane, Lease(str(first.about.get("worker", "")), begin, last))
            if first.about.get("after"):
                self._taken[first] = begin  # its own times are those of the commit that it waited for
                lane.lost.append(begin)
            for row in group:
                if row.kind == "run.suspended":
                    until = end if after is None else min(row.started_at for row in after)
                    self._waits[row] = Bar("bar-wait", last, max(last, until))
                    lane.bars.append(self._waits[row])
        if is_running and not (held and held[-1][0].epoch == run.lease_epoch):  # nothing is recorded yet
            since = rows[-1].finished_at if rows else run.started_at or run.created_at
            self._lease(lane, Lease(run.lease_owner, min(since, self._now), self._now))
        self.lost += lane.lost
        return lane

    def _lost_attempt(self, taken: Row, since: datetime) -> datetime:
        """Keep the bar of the attempt that the lost worker had begun: up to the last renewal of its lease, its end."""
        expired = parse_datetime(str(taken.about["after"])) or since
        self._gone[taken] = Bar("bar-gone", since, max(since, expired - timedelta(seconds=conf.LEASE_S)))
        return self._gone[taken].end

    def _lease(self, lane: Lane, lease: Lease) -> None:
        self.leases.append(lease)
        lane.bars.append(Bar("bar-run", lease.begin, lease.end))

    def _effect_lane(self, run: Run, rows: list[Row]) -> Lane:
        first, last = rows[0], rows[-1]
        tone = _tone(first)
        end = run.finished_at or self._now
        is_open = last.phase != Phase.RESULT
        lane = Lane(tone, min(run.depth + 1, DEEPEST), run, rows)
        if (wait := self._waits.get(first)) is not None:
            lane.bars, lane.took = [wait], wait.end - wait.begin
            lane.state = "waiting" if wait.end == self._now and run.status == Status.SUSPENDED else ""
            return lane
        lane.is_quiet = first.kind in _QUIET or (first.kind in _QUIET_LIFE and not first.about.get("after"))
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            until = end if after is None else after.started_at
            if row.phase == Phase.STARTED and (after is None or tone == "wait"):
                begins = "bar-wait" if tone == "wait" or run.status != Status.RUNNING else f"bar-{tone}"
                lane.bars.append(Bar(begins, row.started_at, max(until, row.started_at)))
            elif row.phase == Phase.PAUSED:
                lane.bars.append(Bar(f"bar-{tone}", row.started_at, row.finished_at))
                lane.bars.append(Bar("bar-wait", row.finished_at, max(until, row.finished_at)))
            elif row.phase == Phase.RESULT and tone in ("model", "tool"):
                kind = "bar-gone" if row.kind == "llm.paid" else "bar-bad" if row.is_error else f"bar-{tone}"
                lane.bars.append(Bar(kind, row.started_at, row.finished_at))
            elif row.phase == Phase.RESULT:
                lane.bars.append(Bar("bar-bad" if row.is_error else "bar-note", row.finished_at, row.finished_at))
        if is_open and not run.is_terminal:
            lane.state = "running" if run.status == Status.RUNNING and tone in ("model", "tool") else "waiting"
        elif last.is_error:
            lane.state = "failed"
        if first.about.get("after"):
            lane.lost = [self._taken.get(first, first.started_at)]
            lane.bars = [self._gone[first]] if first in self._gone else []
        length = (end if is_open else last.finished_at) - first.started_at
        lane.took = length if tone in ("model", "tool", "wait") else None
        costs = [row.cost for row in rows if row.cost is not None]
        lane.cost = sum(costs, Decimal(0)) if costs else None
        return lane


_KEEPS: dict[str, Callable[[Lane], bool]] = {
    "": lambda lane: not lane.is_quiet,
    "all": lambda lane: True,
    "failed": lambda lane: lane.state == "failed" or bool(lane.lost),
    "model": lambda lane: lane.tone == "model",
    "tool": lambda lane: lane.tone == "tool",
    "wait": lambda lane: lane.tone == "wait",
}


class Drawn:
    """A lane for the template: positions, and the same facts in words."""

    def __init__(self, lane: Lane, axis: Axis) -> None:
        self.lane = lane
        self.label = _label(lane.rows) if lane.rows else visible(lane.run.agent)
        self.bars = [_drawn(bar, axis) for bar in lane.bars]
        self.lost = [percent(axis.x(at)) for at in lane.lost]
        begin = min((bar.begin for bar in lane.bars), default=None)
        self.since = "" if begin is None else f"+{formats.duration(begin - axis.begin)}"
        self.took = formats.duration(lane.took) if lane.took else ""
        self.cost = formats.money(lane.cost) if lane.cost is not None else ""
        if gone := next((bar for bar in lane.bars if lane.lost and bar.tone == "bar-gone"), None):
            self.took, self.cost = formats.duration(gone.end - gone.begin), formats.money(None, unknown=True)


def workers_lane(timeline: Timeline) -> dict[str, Any]:
    bars = [_drawn(Bar("bar-lease", lease.begin, lease.end), timeline.axis) for lease in timeline.leases[:1_000]]
    return {"bars": bars, "lost": [percent(timeline.axis.x(at)) for at in timeline.lost], "count": timeline.workers}


def _drawn(bar: Bar, axis: Axis) -> tuple[str, str, str]:
    left = min(axis.x(bar.begin), 100 - NARROWEST)
    return bar.tone, percent(left), percent(max(NARROWEST, axis.x(bar.end) - left))


def _effects(rows: list[Row]) -> list[list[Row]]:
    """The rows of one place in the agent's code together, in the order of their first ones."""
    effects: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        effects.setdefault((row.generation, row.path), []).append(row)
    return list(effects.values())


def _tone(row: Row) -> str:
    if row.kind in ("llm.call", "llm.paid"):
        return "model"
    if row.kind == "tool.call":
        return "tool"
    return "wait" if row.kind in _WAITS or row.kind == "run.suspended" else "note"


def _waits_for(row: Row) -> str:
    """What a suspended run waits for, and until when."""
    waits = [wait for wait in row.about.get("waiting_on") or () if isinstance(wait, dict)]
    names = [
        {
            "signal": _("signal %(name)s") % {"name": wait.get("name", "")},
            "timer": _("a time"),
            "request": _("an answer"),
            "client_tool": _("the page of its owner"),
            "child": _("a child run"),
            "message": _("a message"),
            "provider": _("the rate limit of %(name)s") % {"name": wait.get("name", "")},
        }.get(str(wait.get("kind")), str(wait.get("kind")))
        for wait in waits[:3]
    ]
    until = [parse_datetime(wait["until"]) for wait in waits if isinstance(wait.get("until"), str)]
    label = _("waits for %(what)s") % {"what": ", ".join(dict.fromkeys(names)) or "…"}
    ends = min(filter(None, until), default=None)
    return visible(f"{label} · {_('until %(at)s') % {'at': formats.moment(ends)}}" if ends else label)


def _label(rows: list[Row]) -> str:
    first = rows[0]
    if first.kind == "run.suspended":
        return _waits_for(first)
    name = visible(first.name)
    attempts = max(row.attempt for row in rows)
    text = {
        "llm.call": _("model · %(name)s"),
        "llm.paid": _("lost attempt · %(name)s"),
        "tool.call": "%(name)s",
        "ask": _("wait for %(name)s"),
        "signal": _("signal %(name)s"),
        "approval": _("%(name)s · approval"),
        "child.spawned": _("starts %(name)s"),
        "msg.received": _("message received"),
        "ask.replied": _("reply"),
        "run.resumed": _("worker lost, taken over") if first.about.get("after") else "run.resumed",
    }.get(first.kind, f"{first.kind} %(name)s")
    label = (text % {"name": name}).strip()
    if attempts == 1:
        return label
    tries = ngettext("%(count)s attempt", "%(count)s attempts", attempts) % {"count": attempts}
    return f"{label} · {tries}"


def _id(about: dict[str, Any]) -> UUID:
    """The run that a row is about; its nil id for none."""
    try:
        return UUID(str(about.get("run")))
    except ValueError:
        return UUID(int=0)
