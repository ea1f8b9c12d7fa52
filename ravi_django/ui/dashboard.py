"""The dashboard for staff: runs and costs of a period, and open requests.

Every figure is a link to the rows that it counts, if the site has the admin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _, gettext_lazy, gettext_noop

from ravi_django.conf import conf
from ravi_django.kernel.visible import visible
from ravi_django.live.rollups import reading
from ravi_django.live.rollups.reading import Dashboard, Figures, Tally, Wanted
from ravi_django.models import HumanRequest, Status
from ravi_django.pages import formats, texts
from ravi_django.people import figures
from ravi_django.runs.workers import MISSED
from ravi_django.ui import charts
from ravi_django.ui.charts import Slot
from ravi_django.ui.login import StaffPage
from ravi_django.users import permits

PERIODS = {
    1: gettext_lazy("Today"),
    7: gettext_lazy("Last 7 days"),
    30: gettext_lazy("Last 30 days"),
    90: gettext_lazy("Last 90 days"),
}
PARTS = 20  # agents or models in a table, those with the highest cost
WORSE = 1.25  # times the period before
_WAITING = ((Status.SUSPENDED, gettext_noop("%(count)s waiting")), (Status.BLOCKED, gettext_noop("%(count)s blocked")))
KINDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class DashboardView(StaffPage):
    permission = "ravi.view_run"

    def get(self, request: HttpRequest) -> HttpResponse:
        wanted = _wanted(request)
        requests = None
        if permits(request.user, "ravi.view_humanrequest"):
            rows = HumanRequest.objects.all()
            requests = rows if wanted.tenants is None else rows.filter(tenant__in=wanted.tenants)
        data = reading.read(wanted, requests)
        return render(request, "ravi/ui/dashboard.html", DashboardPage(data, wanted).context(requests is not None))


def _wanted(request: HttpRequest) -> Wanted:
    """The filters in the address; values that cannot be right are left out."""
    filters = {name: request.GET.get(name, "").replace("\0", "") for name in ("days", "agent", "model", "user")}
    days = int(filters["days"]) if filters["days"] in map(str, PERIODS) else 1
    try:
        get_user_model()._meta.pk.to_python(filters["user"])
    except ValidationError:
        filters["user"] = ""
    tenants = figures.tenants_for(request.user)
    return Wanted(days, filters["agent"], filters["model"], filters["user"], tenants)


class DashboardPage:
    def __init__(self, data: Dashboard, wanted: Wanted) -> None:
        self._data, self._wanted = data, wanted
        self._end = data.now
        self._is_of_model = bool(wanted.model)  # runs have no model: the page then shows calls

    def context(self, shows_requests: bool) -> dict[str, Any]:
        data = self._data
        return {
            "title": _("Dashboard"),
            "filters": self._filters(),
            "tiles": [*self._tiles(), *([self._requests_tile()] if shows_requests else []), self._workers_tile()],
            "charts": self._charts(),
            "tables": [self._agents(), self._models(), self._users()],
            "requests": [self._request(row) for row in data.requests] if shows_requests else None,
            "requests_url": _admin("humanrequest"),
            "workers": [self._worker(*worker) for worker in data.workers],
            "zone": timezone.get_default_timezone_name(),
            "until": date_format(data.now, "TIME_FORMAT"),
        }

    # ------------------------------------------------------------------------------------------------- filters

    def _filters(self) -> list[dict[str, Any]]:
        data, wanted = self._data, self._wanted
        users = {user.key: visible(user.name) or user.key for user in data.users if user.key}
        return [
            _choice("days", _("Period"), str(wanted.days), {str(days): name for days, name in PERIODS.items()}),
            _choice("agent", _("Agent"), wanted.agent, _same(data.agents), _("All agents")),
            _choice("model", _("Model"), wanted.model, _same(data.models), _("All models")),
            _choice("user", _("User"), wanted.user, users, _("All users")),
        ]

    def _runs(self, status: str = "", begin: datetime | None = None, end: datetime | None = None, **more: str) -> str:
        """The list of runs in the admin that ended in a time; of live runs without one."""
        wanted = self._wanted
        query = {"status__exact": status, "agent": wanted.agent, "owner__exact": wanted.user} | more
        if begin is not None:
            query["finished_at__gte"] = begin.isoformat()
        if end is not None:
            query["finished_at__lt"] = end.isoformat()
        return _admin("run", **query)

    def _ended(self, status: str = "", **more: str) -> str:
        return self._runs(status, self._data.begin, self._end, **more)

    # --------------------------------------------------------------------------------------------------- tiles

    def _tiles(self) -> Iterable[dict[str, Any]]:
        data, live = self._data, self._data.live
        now, before = self._tally(data.total), self._tally(data.before)
        queued = live.get(Status.QUEUED, 0) + live.get(Status.PENDING, 0)
        yield {
            "name": _("Running now"),
            "value": charts.count(live.get(Status.RUNNING, 0)),
            "url": self._runs(Status.RUNNING),
            "notes": [
                (_("%(count)s queued") % {"count": charts.count(queued)}, self._runs(status__in="queued,pending")),
                *(
                    (_(text) % {"count": charts.count(live[status])}, self._runs(status))
                    for status, text in _WAITING
                    if live.get(status)
                ),
            ],
        }
        share = charts.share(now.completed, now.total)
        yield {
            "name": _("Model calls") if self._is_of_model else _("Finished"),
            "value": charts.count(now.total),
            "url": self._ended(),
            "notes": [(_("%(share)s completed") % {"share": share}, self._ended(Status.COMPLETED))]
            if now.total
            else [],
        }
        yield {
            "name": _("Failed"),
            "value": charts.count(now.failed),
            "url": self._ended(Status.FAILED),
            "notes": [(self._against(now.failed, before.failed, charts.count), "")],
            "worse": now.failed > before.failed * WORSE,
        }
        median, p95, p95_before = (of.times.percentile(at) for of, at in ((now, 0.5), (now, 0.95), (before, 0.95)))
        notes = [(_("95th percentile %(time)s") % {"time": formats.duration_s(p95)}, "")]
        is_slower = p95 is not None and p95_before is not None and p95 > p95_before * WORSE
        if is_slower:
            notes.append((_("slower: %(time)s before") % {"time": formats.duration_s(p95_before)}, ""))
        if data.total.waited_s:
            waited = formats.duration_s(data.total.waited_s)
            notes.append((_("%(time)s waited for model limits") % {"time": waited}, ""))
        yield {
            "name": _("Median duration of calls") if self._is_of_model else _("Median time at work"),
            "value": formats.duration_s(median),
            "url": self._ended(Status.COMPLETED),
            "notes": notes,
            "worse": is_slower,
        }
        spent, cached, unused = data.before.cost, data.total.cached_tokens, data.total.unused
        yield {
            "name": _("Cost"),
            "value": charts.money(data.total.cost, data.total.unpriced),
            "url": self._ended(),
            "notes": [
                (_("%(count)s tokens") % {"count": charts.tokens(data.total.tokens)}, ""),
                *([(formats.cached_share(cached, data.total.input_tokens), "")] if cached else []),
                *([(_("of this, not used: %(cost)s") % {"cost": charts.money(unused)}, "")] if unused else []),
                *([(self._against(data.total.cost, spent, charts.money), "")] if spent else []),
            ],
            "worse": spent and float(data.total.cost) > float(spent) * WORSE,
        }

    def _against(self, now: Any, before: Any, written: Callable[[Any], str]) -> str:
        """A figure against the period before."""
        if now > before > 0:
            return _("%(difference)s more than before") % {"difference": written(now - before)}
        return _("%(before)s before") % {"before": written(before)}

    def _tally(self, of: Figures) -> Tally:
        return of.calls if self._is_of_model else of.runs

    def _requests_tile(self) -> dict[str, Any]:
        data = self._data
        age = data.requests and self._age(data.requests[0].created_at)
        return {
            "name": _("Open approvals"),
            "value": charts.count(data.open_requests),
            "url": _admin("humanrequest", agent=self._wanted.agent),
            "notes": [(_("oldest: %(age)s") % {"age": age}, "")] if age else [],
        }

    def _workers_tile(self) -> dict[str, Any]:
        data, alive = self._data, sum(self._is_alive(seen) for *_rest, seen in self._data.workers)
        late = data.swept_at is None or (data.now - data.swept_at).total_seconds() > MISSED * conf.SWEEP_S + 5
        note = _("no sweep has run") if data.swept_at is None else _("last sweep %(age)s ago")
        return {
            "name": _("Workers"),
            "value": charts.count(alive),
            "url": _admin("workerprocess"),
            "notes": [(note % {"age": self._age(data.swept_at)} if data.swept_at else note, "")],
            "worse": late or not alive,
        }

    def _is_alive(self, seen: datetime) -> bool:
        return (self._data.now - seen).total_seconds() < MISSED * float(conf.HEARTBEAT_S)

    def _age(self, at: datetime) -> str:
        return formats.duration_s(max(0.0, (self._data.now - at).total_seconds()))

    # -------------------------------------------------------------------------------------------------- charts

    def _charts(self) -> list[dict[str, Any]]:
        data = self._data
        slots = [(at, self._name(at), self._tally(of), of) for at, of in data.slots.items()]
        begun = [one for one in slots if one[0] <= data.now]
        unit = _("Hour") if data.hourly else _("Day")
        ended, took, cost = [], [], []
        for at, name, tally, of in slots:
            urls = [self._runs(kind, at, self._next(at)) for kind in KINDS]
            counts = [getattr(tally, kind) for kind in KINDS]
            titles = [f"{name}: {charts.count(n)} {formats.word(kind)}" for n, kind in zip(counts, KINDS, strict=True)]
            ended.append(Slot(self._label(at), counts, titles, urls))
            times = [tally.times.percentile(0.5), tally.times.percentile(0.95)]
            titles = [f"{name}: {formats.duration_s(seconds)}" for seconds in times]
            took.append(Slot(self._label(at), times, titles, [self._runs("", at, self._next(at))] * 2))
            title = f"{name}: {charts.money(of.cost, of.unpriced)}"
            cost.append(Slot(self._label(at), [float(of.cost)], [title], [self._runs("", at, self._next(at))]))
        per_hour = _("Model calls per hour") if self._is_of_model else _("Runs per hour")
        per_day = _("Model calls per day") if self._is_of_model else _("Runs per day")
        times_of = _("Duration of calls") if self._is_of_model else _("Time at work")
        caption = _("A run that waits for people, times or other runs is not at work.")
        return [
            {
                "id": "ended",
                "title": per_hour if data.hourly else per_day,
                "chart": charts.bars(ended, KINDS),
                "marks": [(kind, formats.word(kind)) for kind in KINDS],
                "unit": unit,
                "columns": [formats.word(kind) for kind in KINDS],
                "rows": [
                    (n, self._runs("", at, self._next(at)), [charts.count(getattr(tally, kind)) for kind in KINDS])
                    for at, n, tally, _of in begun
                ],
            },
            {
                "id": "times",
                "title": times_of,
                "chart": charts.lines(took, (("median", _("median")), ("p95", _("95th percentile"))), "{} s"),
                "caption": "" if self._is_of_model else caption,
                "unit": unit,
                "columns": [_("median"), _("95th percentile")],
                "rows": [
                    (
                        n,
                        self._runs("", at, self._next(at)),
                        [formats.duration_s(tally.times.percentile(share)) for share in (0.5, 0.95)],
                    )
                    for at, n, tally, _of in begun
                ],
            },
            {
                "id": "cost",
                "title": _("Cost per hour") if data.hourly else _("Cost per day"),
                "chart": charts.bars(cost, ["cost"], "${}"),
                "unit": unit,
                "columns": [_("model calls"), _("tokens"), _("cost")],
                "rows": [
                    (
                        n,
                        self._runs("", at, self._next(at)),
                        [charts.count(of.calls.total), charts.tokens(of.tokens), charts.money(of.cost, of.unpriced)],
                    )
                    for at, n, _tally, of in begun
                ],
            },
        ]

    def _next(self, at: datetime) -> datetime:
        return at + timedelta(hours=1) if self._data.hourly else reading.day_of(at, 1)

    def _name(self, at: datetime) -> str:
        return date_format(at, "TIME_FORMAT" if self._data.hourly else "DATE_FORMAT")

    def _label(self, at: datetime) -> str:
        return f"{at:%H}" if self._data.hourly else date_format(at, "j M")

    # -------------------------------------------------------------------------------------------------- tables

    def _address(self, **changes: str) -> str:
        wanted = self._wanted
        query = {"days": str(wanted.days), "agent": wanted.agent, "model": wanted.model, "user": wanted.user} | changes
        return f"?{urlencode({name: value for name, value in query.items() if value})}"

    def _agents(self) -> dict[str, Any]:
        rows = []
        for agent, of in _first(self._data.agents, self._wanted.agent):
            tally = self._tally(of)
            rows.append(
                [
                    (visible(agent), self._address(agent=agent)),
                    (charts.count(tally.total), self._ended(agent=agent)),
                    (charts.share(tally.failed, tally.total), self._ended(Status.FAILED, agent=agent)),
                    (formats.duration_s(tally.times.percentile(0.5)), ""),
                    (charts.tokens(of.tokens), ""),
                    (charts.money(of.cost, of.unpriced), ""),
                ]
            )
        counted = _("Calls") if self._is_of_model else _("Runs")
        columns = [_("Agent"), counted, _("Failed"), _("Median"), _("Tokens"), _("Cost")]
        return {"id": "agents", "title": _("By agent"), "columns": columns, "rows": rows}

    def _models(self) -> dict[str, Any]:
        rows = [
            [
                (visible(model), self._address(model=model)),
                (charts.count(of.calls.total), ""),
                (charts.share(of.calls.failed, of.calls.total), ""),
                (formats.duration_s(of.calls.times.percentile(0.5)), ""),
                (charts.tokens(of.tokens), ""),
                (charts.money(of.cost, of.unpriced), ""),
            ]
            for model, of in _first(self._data.models, self._wanted.model)
        ]
        columns = [_("Model"), _("Calls"), _("Errors"), _("Median"), _("Tokens"), _("Cost")]
        return {"id": "models", "title": _("By model"), "columns": columns, "rows": rows}

    def _users(self) -> dict[str, Any]:
        rows = [
            [
                (visible(user.name) or user.key or _("nobody"), self._address(user=user.key) if user.key else ""),
                (charts.count(user.runs), self._ended(owner__exact=user.key) if user.key else ""),
                (charts.count(user.failed), self._ended(Status.FAILED, owner__exact=user.key) if user.key else ""),
                (charts.tokens(user.tokens), ""),
                (charts.money(user.cost, user.unpriced), ""),
            ]
            for user in self._data.users
        ]
        columns = [_("User"), _("Runs"), _("Failed"), _("Tokens"), _("Cost")]
        return {"id": "users", "title": _("By user"), "columns": columns, "rows": rows}

    def _request(self, row: HumanRequest) -> dict[str, Any]:
        return {
            "title": texts.name_of(row),
            "url": _admin_page("humanrequest", row.pk),
            "who": texts.who(row),
            "age": self._age(row.created_at),
            "next": texts.next_of(row),
        }

    def _worker(self, name: str, runs: int, seen: datetime) -> dict[str, Any]:
        return {
            "name": visible(name),
            "runs": charts.count(runs),
            "seen": _("%(age)s ago") % {"age": self._age(seen)},
            "state": "alive" if self._is_alive(seen) else "late",
        }


def _first(parts: Mapping[str, Figures], only: str) -> list[tuple[str, Figures]]:
    chosen = [(name, of) for name, of in parts.items() if only in ("", name)]
    return sorted(chosen, key=lambda one: (-one[1].cost, -one[1].tokens, -one[1].runs.total, one[0]))[:PARTS]


def _choice(name: str, label: str, chosen: str, options: Mapping[str, Any], every: str = "") -> dict[str, Any]:
    values = {**({"": every} if every else {}), **options}
    if chosen not in values:
        values[chosen] = visible(chosen)
    return {"name": name, "label": label, "options": [(key, text, key == chosen) for key, text in values.items()]}


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: visible(name) for name in sorted(names)}


def _admin(model: str, **filters: str) -> str:
    """The list of a model in the admin; empty if the site has none."""
    query = urlencode({name: value for name, value in filters.items() if value})
    try:
        return reverse(f"admin:ravi_{model}_changelist") + (f"?{query}" if query else "")
    except NoReverseMatch:
        return ""


def _admin_page(model: str, key: Any) -> str:
    try:
        return reverse(f"admin:ravi_{model}_change", args=[key])
    except NoReverseMatch:
        return ""
