"""The data of the run page: the runs of a tree, their journals without bodies, the matches of a search, one entry.

A reader finds and reads only what the REST API shows them of an entry, and what the admin shows them of instructions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, ExpressionWrapper, F, Q, TextField, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from ravi_django.agents.memory.compaction.summarization import SCOPE as SUMMARY_SCOPE
from ravi_django.engine.journal.entries import blob_value, internalize
from ravi_django.kernel import ChatMessage
from ravi_django.kernel.visible import visible
from ravi_django.live.streams import hidden
from ravi_django.models import Blob, InboxMessage, JournalEntry, Run, Turn
from ravi_django.models.fields import KINDS, TextJSONField
from ravi_django.models.run import RunQuerySet
from ravi_django.models.session import by_agent
from ravi_django.pages import formats
from ravi_django.services.shapes import EntrySerializer

ROWS = 20_000  # of one tree
MATCHES = 2_000  # of one search
LONGEST = 100_000  # characters of a value on the page; the export has all
MEMBERS = 200  # of one object or list on the page
LINE = 80  # characters of a folded value
LONG = 4_000  # characters: a longer text is folded at first
SHORT = 1_000  # characters: shorter JSON is open at first, at all levels
ADDED = 50  # entries and messages between two model calls
_ADDS = ("llm.call", "tool.call", "ask", "ask_human", "signal")  # an agent may put their results into its next prompt
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


def runs_of(run: Run, visible_runs: RunQuerySet) -> list[Run]:
    """The run's whole tree as far as the user may see it, oldest first. One query."""
    rows = visible_runs.filter(Q(id=run.tree_id) | Q(root_id=run.tree_id))
    return list(rows.defer("output", "metadata", "budget", "result_schema", "state", "client_tools").order_by("id"))


def is_cut(runs: list[Run]) -> bool:
    """Whether the journals have more than ROWS entries."""
    return sum(run.next_seq - 1 for run in runs) > ROWS


def rows_of(runs: list[Run], searched: Iterable[tuple[UUID, int]] = ()) -> list[Row]:
    """The journals of these runs, each in order, ROWS entries at most, of the longest ones the beginning; and the
    entries that a search has found. One query."""
    about = Case(When(kind__in=_ABOUT, then=F("result")), output_field=TextJSONField())
    ours = Q(run__in=[run.id for run in runs])
    if is_cut(runs):
        ours &= Q(seq__lte=_share(runs))
        for run_id, matches in groupby(sorted(searched), itemgetter(0)):
            ours |= Q(run=run_id, seq__in=[seq for _, seq in matches])
    entries = JournalEntry.objects.filter(ours).order_by("run_id", "seq")
    columns = entries.values_list(
        *(ExpressionWrapper(Q(error__isnull=False), BooleanField()), KT("result__is_error"), about),
        *("run_id", "seq", "generation", "path", "attempt", "phase", "kind", "name"),
        *("input_tokens", "output_tokens", "cost", "epoch", "started_at", "finished_at"),
    )
    rows = []
    for has_error, is_error, about_value, *facts in columns:
        failed = has_error or str(is_error).lower() in ("true", "1")
        rows.append(Row(failed, about_value if isinstance(about_value, dict) else {}, *facts))
    return rows


def _share(runs: list[Run]) -> int:
    """How many entries of a run are shown, so that shorter ones are whole."""
    left = ROWS
    for others, run in zip(range(len(runs), 0, -1), sorted(runs, key=attrgetter("next_seq")), strict=True):
        if run.next_seq - 1 > left // others:
            return left // others
        left -= run.next_seq - 1
    return left


def search(runs: Iterable[Run], term: str, user: Any) -> set[tuple[UUID, int]]:
    """The entries that contain the term: in kind, name or path, or in a body that the user may read. At most MATCHES;
    not in bodies that are stored outside of their row."""
    plain = (
        Q(kind__in=[kind for kind in KINDS if term.lower() in kind]) | Q(name__icontains=term) | Q(path__icontains=term)
    )
    quoted = json.dumps(term, ensure_ascii=False)[1:-1]  # as it is inside JSON
    bodies = {f"{name}_text": Cast(name, TextField()) for name in ("request", "result", "error")}
    inside = Q(request_text__icontains=quoted) | Q(result_text__icontains=quoted) | Q(error_text__icontains=quoted)
    entries = JournalEntry.objects.filter(run__in=[run.id for run in runs]).annotate(**bodies).order_by("run_id", "seq")
    by_name = entries.filter(plain).values_list("run_id", "seq")[:MATCHES]
    readable = inside & ~Q(kind="pinned", name__startswith="instructions")
    columns = ("run_id", "seq", "kind", "request", "result", "name")
    by_body = entries.filter(readable).values_list(*columns)[:MATCHES]
    whole = hidden.sees(user)
    return {
        *by_name,
        *((run_id, seq) for run_id, seq, *body in by_body if whole or not hidden.is_marked(*body)),
    }


def entries_of(run: Run, seq: int, user: Any) -> list[dict[str, Any]]:
    """The entry and the others of its effect, its attempts and phases, in order, as REST shows them, with their
    `row`; `is_said`: a later one has the same request."""
    effect = JournalEntry.objects.filter(run=run, seq=seq).values("generation", "path").first()
    if effect is None:
        return []
    rows = list(JournalEntry.objects.filter(run=run, **effect).order_by("seq"))
    internalize(rows)
    entries = EntrySerializer(rows, many=True, context={"user": user}).data
    return [
        {**one, "row": row, "is_said": any(one["request"] == other["request"] for other in entries[number + 1 :])}
        for number, (one, row) in enumerate(zip(entries, rows, strict=True))
    ]


def edited(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """The difference between a call's arguments and those that it ran with."""
    request = entry["request"]
    if not isinstance(request, dict) or "ran_with" not in request:
        return []
    return formats.difference(request.get("arguments"), request["ran_with"])


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
    return {"seq": seq, "before": max(0, seq - 1), "lines": formats.difference(*sides)}


def _without_arguments(call: Any) -> Any:
    return {name: call[name] for name in ("kind", "name") if name in call} if isinstance(call, dict) else None


# ------------------------------------------------------------------------------------------------------ prompts


def new_since(call: JournalEntry, user: Any, *, with_instructions: bool) -> dict[str, Any] | None:
    """What a model call was sent that the one before it in the run was not. None if it is the first one.

    The journal has no prompts. It has their parts: the number of messages, digests of instructions and tools, and the
    results and messages between the two calls.
    """
    ours = JournalEntry.objects.filter(run=call.run_id, generation=call.generation, seq__lt=call.seq)
    calls = ours.filter(kind="llm.call").exclude(path=call.path).exclude(path__contains=SUMMARY_SCOPE)
    if call.kind != "llm.call" or (before := calls.order_by("-seq").first()) is None:
        return None
    instructions = _bodies("instructions", before, call)
    tools = [{tool.get("name", "") for tool in body or ()} for body in _bodies("tools", before, call)]
    return {
        "before": before,
        "messages": [(one.request or {}).get("messages", 0) for one in (before, call)],
        "is_instructed_anew": instructions[0] != instructions[1],
        "instructions": formats.difference(*map(_text_of, instructions)) if with_instructions else [],
        "tools": [f"+ {name}" for name in sorted(tools[1] - tools[0])]
        + [f"- {name}" for name in sorted(tools[0] - tools[1])],
        "added": [*_results(ours.filter(seq__gte=before.seq), user), *_received(before, call, user)],
    }


MOST_SENT = 200  # messages of one call on the page


def sent(call: JournalEntry, user: Any, *, with_instructions: bool) -> dict[str, Any] | None:
    """What a model call was sent: its stored instructions and tools, and the messages before it, as many as it had.

    The messages are rebuilt from the journal and the conversation: a summary in their place is not shown.
    """
    if call.kind != "llm.call":
        return None
    (instructions,), (tools,) = (_bodies(part, call) for part in ("instructions", "tools"))
    count = max(0, (call.request or {}).get("messages", 0) - ("instructions" in (call.digests or {})))
    rebuilt = sorted(_messages_before(call, user, min(count, MOST_SENT)), key=itemgetter(0))
    messages = [(role, blocks) for _, role, blocks in rebuilt][-count:] if count else []
    text = _text_of(instructions) if with_instructions else None
    return {
        "count": count,
        "instructions": text and visible(text[:LONGEST]),
        "tools": [(visible(str(tool.get("name", ""))), folded(tool)) for tool in tools or ()],
        "messages": [(role, formats.blocks(blocks)) for role, blocks in messages],
        "json": copied({"instructions": text, "tools": tools, "messages": messages}),
    }


def _messages_before(call: JournalEntry, user: Any, most: int) -> Iterator[tuple[datetime, str, Any]]:
    """The newest messages of each kind, `most` at most: (time, role, content blocks)."""
    whole = hidden.sees(user)
    ours = JournalEntry.objects.filter(run=call.run_id, generation=call.generation, seq__lt=call.seq)
    rows = ours.filter(kind__in=("llm.call", "tool.call"), result__isnull=False).exclude(path__contains=SUMMARY_SCOPE)
    entries = list(rows.order_by("-seq")[:most])
    internalize(entries)
    as_json = EntrySerializer(entries, many=True, context={"user": user}).data
    for row, one in zip(entries, as_json, strict=True):
        result = one["result"] if isinstance(one["result"], dict) else {}  # None where it is hidden from the user
        if row.kind == "llm.call":
            yield row.finished_at, "assistant", result.get("content") or []
        else:
            yield row.finished_at, "tool", [{"type": "tool_result", **result}]
    received = InboxMessage.objects.filter(run=call.run_id, id__lte=call.read_upto or 0).order_by("-id")[:most]
    for message in received:
        if content := (message.body["payload"].get("message") or {}).get("content"):
            yield message.created_at, "user", content if whole else hidden.blocks(content)
    turns = Turn.objects.filter(by_agent(call.run.agent) | Q(shared=True), session=call.run.session_id, keeps=None)
    earlier = turns.exclude(run=call.run_id).filter(created_at__lt=call.run.created_at).select_related("entry")
    for turn in earlier.order_by("-position")[:most]:
        yield turn.created_at, turn.role, turn.blocks if whole else hidden.blocks(turn.blocks)


def _bodies(part: str, *calls: JournalEntry) -> list[Any]:
    """The stored instructions or tools of each call."""
    names = [(call.digests or {}).get(part, "") for call in calls]
    values = {blob.id: blob_value(blob) for blob in Blob.objects.filter(id__in=names)}
    return [values.get(name) for name in names]


def _text_of(instructions: Any) -> str | None:
    return None if instructions is None else ChatMessage.model_validate(instructions).text


def _results(rows: Any, user: Any) -> list[dict[str, Any]]:
    entries = list(rows.filter(kind__in=_ADDS, result__isnull=False).order_by("seq")[:ADDED])
    internalize(entries)
    results = EntrySerializer(entries, many=True, context={"user": user}).data
    return [{"seq": one["seq"], "name": one["name"] or one["kind"], "shown": folded(one["result"])} for one in results]


def _received(before: JournalEntry, call: JournalEntry, user: Any) -> list[dict[str, Any]]:
    """The chat messages that the agent received between the two calls."""
    places = {"id__gt": before.read_upto or 0, "id__lte": call.read_upto or 0}
    messages = InboxMessage.objects.filter(run=call.run_id, **places).order_by("id")[:ADDED]
    contents = [(one.body["payload"].get("message") or {}).get("content") for one in messages]
    return [
        {"shown": folded(content if hidden.sees(user) else hidden.blocks(content))} for content in contents if content
    ]


# --------------------------------------------------------------------------------------------------------- JSON


def copied(value: Any) -> str:
    """JSON for the clipboard; none that would make the page slow."""
    text = _pretty(value)
    return text if len(text) <= 10 * LONGEST else ""


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def folded(value: Any, depth: int = 0, is_open: bool = True) -> SafeString:
    """JSON whose objects, lists and long texts fold to one line. Open: the outermost one and what is alone in it."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(text) > LONGEST or depth > 20:
        return _leaf(value if isinstance(value, str) and "\n" in value else text)
    pairs: Collection[tuple[Any, Any]] = value.items() if isinstance(value, dict) else [*enumerate(value)]
    inner = format_html_join(
        "",
        "<li><b>{}</b> {}</li>",
        (
            (visible(str(name)), folded(one, depth + 1, is_open and (len(pairs) == 1 or len(text) < SHORT)))
            for name, one in islice(pairs, MEMBERS)
        ),
    )
    if len(pairs) > MEMBERS:
        inner += format_html("<li>… +{}</li>", len(pairs) - MEMBERS)
    count = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
    return _fold(count, text, format_html("<ul>{}</ul>", inner), is_open)


def _leaf(text: str) -> SafeString:
    inner = format_html("<span>{}</span>", visible(text[:LONGEST]) + ("…" if len(text) > LONGEST else ""))
    count = ngettext("%(count)s character", "%(count)s characters", len(text)) % {"count": f"{len(text):,}"}
    return inner if len(text) <= LONG else _fold(count, text, inner, is_open=False)


def _fold(count: str, text: str, inner: SafeString, is_open: bool) -> SafeString:
    line = visible(" ".join(text[: 2 * LINE].split())[:LINE]) + ("…" if len(text) > LINE else "")
    opened = SafeString(" open" if is_open else "")
    return format_html("<details{}><summary>{} <i>{}</i></summary>{}</details>", opened, count, line, inner)
