"""The data of the run page: the runs of a tree, their journals without bodies, the matches of a search, one entry.

A reader finds and reads only what the REST API shows them of an entry.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, ExpressionWrapper, F, JSONField, Q, TextField, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ravi_django.kernel.visible import visible
from ravi_django.models import JournalEntry, Run
from ravi_django.runtime.journal.entries import internalize
from ravi_django.runtime.streams import hidden
from ravi_django.services.shapes import EntrySerializer

ROWS = 20_000  # of one tree
MATCHES = 2_000  # of one search
SHOWN = 100_000  # characters of a value on the page; the export has all
OPEN = 2  # levels of JSON that are open at first
# The kinds whose result says where a bar ends, or which run it is about.
_ABOUT = ("run.started", "run.resumed", "run.suspended", "child.spawned", "run.handoff")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A journal row without its bodies."""

    is_error: bool
    about: dict[str, Any]  # the result, of some kinds
    run_id: UUID
    seq: int
    generation: int
    path: str
    attempt: int
    phase: str
    kind: str
    name: str
    input_tokens: int | None
    output_tokens: int | None
    cost: Decimal | None
    epoch: int
    started_at: datetime
    finished_at: datetime


def runs_of(run: Run, user: Any) -> list[Run]:
    """The run's whole tree as far as the user may see it, oldest first. One query."""
    rows = Run.objects.for_user(user).filter(Q(id=run.tree_id) | Q(root_id=run.tree_id))
    return list(rows.defer("output", "metadata", "budget").order_by("id"))


def is_cut(runs: list[Run]) -> bool:
    """Whether the journals have more than ROWS entries."""
    return sum(run.next_seq - 1 for run in runs) > ROWS


def rows_of(runs: list[Run]) -> list[Row]:
    """The journals of these runs, each in order, ROWS of them at most: of a longer one the beginning. One query."""
    about = Case(When(kind__in=_ABOUT, then=F("result")), output_field=JSONField())
    ours = Q(run__in=[run.id for run in runs])
    if is_cut(runs):
        ours &= Q(seq__lte=ROWS // len(runs))
    found = JournalEntry.objects.filter(ours).order_by("run_id", "seq")
    columns = found.values_list(
        *(ExpressionWrapper(Q(error__isnull=False), BooleanField()), KT("result__is_error"), about),
        *("run_id", "seq", "generation", "path", "attempt", "phase", "kind", "name"),
        *("input_tokens", "output_tokens", "cost", "epoch", "started_at", "finished_at"),
    )
    rows = []
    for has_error, is_error, said, *facts in columns:
        failed = has_error or str(is_error).lower() in ("true", "1")
        rows.append(Row(failed, said if isinstance(said, dict) else {}, *facts))
    return rows


def search(runs: Iterable[Run], term: str, user: Any) -> set[tuple[UUID, int]]:
    """The entries that contain the term: in kind, name or path, or in a body that the user may read. At most MATCHES;
    not in bodies that are stored outside of their row."""
    plain = Q(kind__icontains=term) | Q(name__icontains=term) | Q(path__icontains=term)
    quoted = json.dumps(term, ensure_ascii=False)[1:-1]  # as it is inside JSON
    bodies = {f"{name}_text": Cast(name, TextField()) for name in ("request", "result", "error")}
    inside = Q(request_text__icontains=quoted) | Q(result_text__icontains=quoted) | Q(error_text__icontains=quoted)
    found = JournalEntry.objects.filter(run__in=[run.id for run in runs]).annotate(**bodies).order_by("run_id", "seq")
    by_name = found.filter(plain).values_list("run_id", "seq")[:MATCHES]
    readable = inside & ~Q(kind="pinned", name__startswith="instructions")
    columns = ("run_id", "seq", "kind", "request", "result", "name")
    by_body = found.filter(readable).values_list(*columns)[:MATCHES]
    whole = hidden.sees(user)
    return {
        *by_name,
        *((run_id, seq) for run_id, seq, *body in by_body if whole or not hidden.is_marked(*body)),
    }


def entries_of(run: Run, seq: int, user: Any) -> list[dict[str, Any]]:
    """The entry and the others of its effect, its attempts and phases, in order, as REST shows them, with their
    `row`; `is_said`: a later one has the same request."""
    place = JournalEntry.objects.filter(run=run, seq=seq).values("generation", "path").first()
    if place is None:
        return []
    rows = list(JournalEntry.objects.filter(run=run, **place).order_by("seq"))
    internalize(rows)
    shown = EntrySerializer(rows, many=True, context={"user": user}).data
    return [
        {**one, "row": row, "is_said": any(one["request"] == other["request"] for other in shown[number + 1 :])}
        for number, (one, row) in enumerate(zip(shown, rows, strict=True))
    ]


def edited(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """The difference between a call's arguments and those that it ran with."""
    request = entry["request"]
    if not isinstance(request, dict) or "ran_with" not in request:
        return []
    return difference(request.get("arguments"), request["ran_with"])


def replay_difference(run: Run, user: Any) -> dict[str, Any] | None:
    """For a run whose code no longer fits its journal: what was recorded against what was asked, without what is hidden
    from the user."""
    diff = run.error.get("diff") if isinstance(run.error, dict) else None
    if not isinstance(diff, dict):
        return None
    sides = [diff.get(side) for side in ("recorded", "asked")]
    row = JournalEntry.objects.filter(run=run, generation=run.generation, path=diff.get("path", "")).first()
    if not hidden.sees(user) and (row is None or hidden.is_marked(row.kind, row.request, row.result, row.name)):
        sides = [_without_arguments(side) for side in sides]
    seq = row.seq if row is not None else 0
    return {"seq": seq, "before": max(0, seq - 1), "lines": difference(*sides)}


def _without_arguments(call: Any) -> Any:
    return {name: call[name] for name in ("kind", "name") if name in call} if isinstance(call, dict) else None


def difference(before: Any, after: Any) -> list[tuple[str, str]]:
    """Lines of JSON as (`del`, `ins` or "", text)."""
    tags = {"- ": "del", "+ ": "ins", "  ": ""}
    old, new = _lines(before), _lines(after)
    if max(len(old), len(new)) > 500:  # the comparison is quadratic
        return [("del", f"- {line}") for line in old] + [("ins", f"+ {line}") for line in new]
    return [(tags[line[:2]], line) for line in difflib.ndiff(old, new) if line[:2] in tags]


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    return visible(json.dumps(value, indent=2, ensure_ascii=False))[:SHOWN].splitlines()


def folded(value: Any, depth: int = 0) -> SafeString:
    """JSON whose objects and lists fold."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(text) > SHOWN or depth > 20:
        if isinstance(value, str) and len(value) > SHOWN:
            text = f"{value[:SHOWN]}…"
        return format_html("<span>{}</span>", visible(text[:SHOWN]))
    pairs: Collection[tuple[Any, Any]] = value.items() if isinstance(value, dict) else [*enumerate(value)]
    inner = format_html_join(
        "",
        "<li><b>{}</b> {}</li>",
        ((visible(str(name)), folded(one, depth + 1)) for name, one in pairs),
    )
    count = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
    is_open = SafeString(" open" if depth < OPEN and len(text) < 4_000 else "")
    return format_html("<details{}><summary>{}</summary><ul>{}</ul></details>", is_open, count, inner)
