"""The page of a run: one timeline over its tree, its journal, and the actions that the reader may use.

The server renders all of it. The script renders parts again while the run works, and sends actions to the REST API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cached_property, partial
from hashlib import sha256
from math import log
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Q
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.decorators import method_decorator
from django.utils.translation import get_language, gettext as _
from django.views.decorators.csrf import ensure_csrf_cookie
from pydantic_core import to_json

from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import internalize
from ravi_django.live.streams import hidden
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.pages import formats, texts
from ravi_django.pages.context import input_of
from ravi_django.pages.run_rights import RunRights, actions_of, may_fork
from ravi_django.people import rights
from ravi_django.runs.budgets.accounts import TreeUsage
from ravi_django.runs.teams.slots import reached
from ravi_django.services.request_shapes import marked
from ravi_django.services.shapes import EntrySerializer, RunSerializer
from ravi_django.ui import journal
from ravi_django.ui.login import Page, admin_list, problem
from ravi_django.ui.run_details import details_of
from ravi_django.ui.texts import script_texts
from ravi_django.ui.timeline import KINDS, Drawn, Timeline, workers_lane
from ravi_django.users import has, name_of, permits

PART = 300  # lanes
REQUESTS = 20  # open ones
INPUT = 400  # characters of what the run began with
EXPORTED = 200  # rows a query
GROWTH = 1.02  # of a live run's time: its bars are drawn again
TAGGED = ("id", "status", "next_seq", "lease_epoch", "cancel_requested_at", "input_tokens", "output_tokens", "cost")


@method_decorator(ensure_csrf_cookie, name="dispatch")  # the script sends the cookie's token
class RunView(Page):
    def get(self, request: HttpRequest, id: UUID) -> HttpResponseBase:
        rights = RunRights(request.user)
        run = rights.runs().filter(id=id).select_related("owner", "root").first()
        if run is None:
            return problem(request, 404, _("There is no such run."))
        if "entry" in request.GET and request.GET.get("part") == "detail":
            return render(request, "ravi/ui/run_entry.html", {"entry": _entry(request, run, rights), "run": run})
        page = RunPage(request, run, rights)
        tag = page.tag()
        unchanged = get_conditional_response(request, etag=tag)
        if unchanged is not None:
            return unchanged
        response = render(request, "ravi/ui/run.html", page.context())
        response["ETag"] = tag
        return response


class ExportView(Page):
    """The run, its descendants and their journals as a JSON file, as REST shows them."""

    def get(self, request: HttpRequest, id: UUID) -> HttpResponseBase:
        rights = RunRights(request.user)
        run = rights.runs().filter(id=id).first()
        if run is None:
            return problem(request, 404, _("There is no such run."))
        if not rights.may_read_journal(run):
            return problem(request, 403, _("You may not read the journals of runs."))
        parts: Any = _export(run, rights)
        if isinstance(request, ASGIRequest):  # under ASGI Django would collect all parts in memory
            parts = _one_by_one(parts)
        response = StreamingHttpResponse(parts, content_type="application/json")
        response["Content-Disposition"] = f'attachment; filename="run-{run.id}.json"'
        return response


def _export(run: Run, rights: RunRights) -> Iterator[bytes]:
    yield from _with_journal(run, rights.user)
    yield b', "descendants": ['
    tree, separator = rights.runs().filter(root_id=run.tree_id).order_by("id"), b"\n"
    ours = reached({run.id}, lambda edge: tree.filter(parent__in=edge).values_list("id", flat=True))
    below = sorted(ours - {run.id})
    for start in range(0, len(below), EXPORTED):  # no cursor stays open while the reader is slow
        for one in tree.filter(id__in=below[start : start + EXPORTED]):
            if rights.may_read_journal(one):
                yield separator
                yield from _with_journal(one, rights.user)
                yield b"}"
                separator = b",\n"
    yield b"\n]}\n"


def _with_journal(run: Run, user: Any) -> Iterator[bytes]:
    yield b'{"run": ' + to_json(RunSerializer(run).data) + b', "journal": ['
    seq = 0
    while rows := list(run.journal.filter(seq__gt=seq).order_by("seq")[:EXPORTED]):
        internalize(rows)
        for row in EntrySerializer(rows, many=True, context={"user": user}).data:
            yield (b",\n" if seq else b"\n") + to_json(row)
            seq = row["seq"]
    yield b"]"


async def _one_by_one(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    following = sync_to_async(partial(next, parts, None))
    while (part := await following()) is not None:
        yield part


def _entry(request: HttpRequest, run: Run, rights: RunRights) -> dict[str, Any] | None:
    """What the page shows of the entry that the address names."""
    run_id, _dot, seq = request.GET.get("entry", "").rpartition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 18):
        return None
    try:
        entry_run = rights.runs().filter(id=UUID(run_id)).first() if run_id else run
    except ValueError:
        return None
    if entry_run is None or entry_run.tree_id != run.tree_id or not rights.may_read_journal(entry_run):
        return None
    if not (rows := journal.entries_of(entry_run, int(seq), request.user)):
        return None
    bodies = [
        {
            **entry,
            "took": formats.between(entry["row"].started_at, entry["row"].finished_at),
            "trace": entry["row"].trace if hidden.sees(request.user) else None,
            "edited": [] if entry["is_said"] else journal.edited(entry),
            "shown": [(name, journal.folded(entry[name]), journal.copied(entry[name])) for name in _bodies(entry)],
        }
        for entry in rows
    ]
    address = urlencode({"entry": f"{entry_run.id}.{rows[0]['seq']}"})
    with_instructions = rights.operates_on(entry_run)
    return {
        "run": entry_run,
        "sent": journal.sent(rows[-1]["row"], request.user, with_instructions=with_instructions),
        "new": journal.new_since(rows[-1]["row"], request.user, with_instructions=with_instructions),
        "first": bodies[0],
        "rows": bodies,
        "before": int(rows[0]["seq"]) - 1,
        "address": f"?{address}",
        "is_operated": rights.operates_on(entry_run),
        "may_fork": rows[0]["seq"] > 1 and rights.may_act(entry_run) and may_fork(request.user, entry_run),
    }


def _bodies(entry: dict[str, Any]) -> list[str]:
    names = ["result"] if entry["is_said"] else ["request", "result"]
    return [name for name in names if entry[name] is not None]


class RunPage:
    def __init__(self, request: HttpRequest, run: Run, rights: RunRights) -> None:
        self._request, self._run, self._user, self._rights = request, run, request.user, rights
        self._runs = journal.runs_of(run, rights.runs())
        self._readable = [one for one in self._runs if rights.may_read_journal(one)]
        self._is_readable = run in self._readable
        self._now = clock.present()

    def tag(self) -> str:
        """Changes with what the page shows. The bars of a live run count as changed once a minute, and when they are
        `GROWTH` times as long."""
        is_live = any(not one.is_terminal for one in self._runs)
        age_s = max(1.0, (self._now - self._runs[0].created_at).total_seconds())
        length = [self._now.timestamp() // 60, log(age_s) // log(GROWTH)] if is_live else []
        runs = [[getattr(one, name) for name in TAGGED] for one in self._runs]
        asked = [(request.id, request.version) for request in self._asked]
        reader = [self._user.pk, get_language(), self._request.get_full_path()]
        return f'"{sha256(repr([reader, runs, asked, length]).encode()).hexdigest()}"'

    def context(self) -> dict[str, Any]:
        request, run, rights = self._request, self._run, self._rights
        asked = {name: request.GET.get(name, "").replace("\0", "") for name in ("q", "kind", "time", "entry")}
        matches = journal.search(self._readable, asked["q"], self._user) if asked["q"] and self._readable else None
        rows = journal.rows_of(self._readable, matches or ())
        timeline = Timeline(self._runs, rows, self._now, is_whole=asked["time"] == "true")
        lanes = timeline.chosen(asked["kind"], matches)
        first, until = (_number(request, name, default) for name, default in (("from", 0), ("upto", 0)))
        part = lanes[first : max(until, first + PART)]
        is_staff = has(self._user, "is_superuser") or has(self._user, "is_staff")
        filters = {name: value for name, value in asked.items() if value and name != "entry"}
        return {
            "run": run,
            "mount": request.path[: request.path.rindex("ui/runs/")],
            "asked": asked,
            "kinds": [(value, name, value == asked["kind"]) for value, name in KINDS.items()],
            "sums": self._sums(timeline),
            "is_readable": self._is_readable,
            "is_live": any(not one.is_terminal for one in self._runs),
            "axis": timeline.axis,
            "is_cut": journal.is_cut(self._readable),
            "workers": workers_lane(timeline),
            "lanes": [Drawn(lane, timeline.axis) for lane in part],
            "query": urlencode(filters),
            "count": len(lanes),
            "shown": first + len(part),
            "next": urlencode({**filters, "from": first + len(part)}) if first + len(part) < len(lanes) else "",
            "entry": _entry(request, run, rights) if asked["entry"] else None,
            "input": formats.snippet(" ".join(block["shown"]["text"] for block in input_of(run)), INPUT),
            "output": formats.snippet(run.output, INPUT) if run.status == Status.COMPLETED and run.output else "",
            "diff": journal.replay_difference(run, self._user) if self._is_readable else None,
            "error": run.error if isinstance(run.error, dict) else None,
            "requests": self._requests(),
            "may": actions_of(self._user, run) if rights.may_act(run) else None,
            "acts": "ui/runs" if rights.changes(run) else "runs",
            "follows": run.is_for(self._user),
            "details": details_of(run) if rights.operates_on(run) else None,
            "inbox": admin_list("humanrequest") if is_staff else "",
            "dashboard": is_staff and permits(self._user, "ravi.view_run"),
            "admin": admin_list("run") if rights.is_operator else "",
            "words": script_texts(),
        }

    def _sums(self, timeline: Timeline) -> list[tuple[str, str]]:
        run, usage = self._run, TreeUsage.of(self._runs)
        work = f"{formats.duration(timeline.axis.work)} / " if self._is_readable else ""
        sums = [
            (_("Owner"), name_of(run.owner) if run.owner else _("the system")),
            (_("Starts at") if run.start_at else _("Started"), formats.moment(run.start_at or run.started_at)),
            (_("At work / total") if work else _("Total"), f"{work}{formats.duration(timeline.axis.total)}"),
            (_("Tokens in → out"), formats.tokens(usage.input_tokens, usage.output_tokens, usage.cached_tokens)),
            (_("Cost"), formats.money(usage.cost, unknown=usage.cost_unknown) if usage.input_tokens else formats.NONE),
            (_("Runs"), f"{usage.runs:,}"),
        ]
        return [*sums, (_("Takeovers"), f"{timeline.takeovers:,}")] if self._is_readable else sums

    @cached_property
    def _asked(self) -> list[HumanRequest]:
        """The open requests of the tree that the user may read."""
        tree = self._run.tree_id
        rows = rights.visible(self._user).filter(Q(run=tree) | Q(run__root=tree), status=HumanRequest.Status.PENDING)
        return list(rows.select_related("run", "owner").order_by("id")[:REQUESTS])

    def _requests(self) -> list[dict[str, Any]]:
        rows = marked(self._asked, self._user)
        return [
            {
                "id": row.id,
                "title": row.tool if row.hides else texts.title_of(row),
                "who": texts.who(row),
                "next": texts.next_of(row),
            }
            for row in rows
        ]


def _number(request: HttpRequest, name: str, default: int) -> int:
    value = request.GET.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else default
