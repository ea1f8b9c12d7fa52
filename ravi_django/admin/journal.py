"""Journal entries, read-only, and the timeline that the pages of a run show of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext

from ravi_django.admin.base import InspectAdmin
from ravi_django.models import Blob, JournalEntry, Phase
from ravi_django.pages import show
from ravi_django.runtime.journal.entries import blob_value, internalize

TONES = {"llm": "model", "tool": "tool", "run": "life"}  # the bar's colour, by the first part of the entry's kind


def timeline_of(entries: Sequence[JournalEntry]) -> list[dict[str, Any]]:
    """The bars' offset and width are percentages of the time span of these entries."""
    if not entries:
        return []
    begin = min(entry.started_at for entry in entries)
    span = (max(entry.finished_at for entry in entries) - begin).total_seconds() or 1.0
    return [_line(entry, begin, span) for entry in entries]


def _line(entry: JournalEntry, begin: Any, span: float) -> dict[str, Any]:
    offset = 100 * (entry.started_at - begin).total_seconds() / span
    took = entry.finished_at - entry.started_at
    bodies = [(name, show.pretty(getattr(entry, name))) for name in ("request", "result", "error")]
    is_error = isinstance(entry.result, dict) and entry.result.get("is_error") is True
    called_model = entry.input_tokens is not None
    return {
        "entry": entry,
        "tone": TONES.get(entry.kind.partition(".")[0], "other"),
        "failed": entry.error is not None or is_error,
        "summary": _summary(entry),
        "offset": round(min(offset, 99.0), 2),
        "width": round(max(0.8, min(100 * took.total_seconds() / span, 100 - offset)), 2),
        "duration": show.duration(took) if took else "",
        "since": f"+{show.duration(entry.started_at - begin)}",
        "tokens": show.tokens(entry.input_tokens, entry.output_tokens, entry.cached_tokens) if called_model else "",
        "cost": show.money(entry.cost) if called_model else "",
        "bodies": [(name, shown) for name, shown in bodies if shown],
    }


def _summary(entry: JournalEntry) -> str:
    """The entry in a few words: the model's answer, the tool's arguments and result, the error."""
    if entry.error is not None:
        return show.snippet(f"{entry.error.get('type', '')}: {entry.error.get('message', '')}")
    if entry.phase == Phase.STARTED:
        return gettext("started; the result is a separate entry")
    if entry.phase == Phase.PAUSED:
        return show.snippet(_waited_for(entry.result))
    text = _text_of(entry.result)
    if entry.kind == "tool.call":
        arguments = entry.request.get("arguments") if isinstance(entry.request, dict) else None
        given = ", ".join(f"{name}={value}" for name, value in arguments.items()) if isinstance(arguments, dict) else ""
        return show.snippet(f"({given}) → {text}")
    return show.snippet(text)


def _waited_for(pause: Any) -> str:
    if isinstance(pause, dict) and pause.get("pause") == "child":
        return gettext("waiting for run %(run)s; the result is a separate entry") % {"run": pause.get("run")}
    return gettext("waiting for input; the next attempt gets it")


def _text_of(result: Any) -> str:
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(content, list):
        return ""
    parts = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_use":
            parts.append(gettext("calls %(tool)s") % {"tool": block.get("tool_name")})
        elif isinstance(block, dict):
            parts.append(str(block.get("text") or f"[{block.get('type')}]"))
    return " · ".join(parts)


@admin.register(JournalEntry)
class JournalEntryAdmin(InspectAdmin):
    tenant = "run__tenant"
    in_index = False
    change_form_template = "ravi/admin/entry.html"
    list_select_related = ["run"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Users who may see runs see their entries."""
        return request.user.has_perm("ravi.view_run") or request.user.has_perm("ravi.change_run")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return redirect("admin:ravi_run_changelist")

    def inspect(self, request: HttpRequest, entry: JournalEntry) -> dict[str, Any]:
        internalize([entry])
        neighbours = JournalEntry.objects.filter(run=entry.run_id, seq__in=[entry.seq - 1, entry.seq + 1])
        beside = dict(neighbours.values_list("seq", "pk"))
        bodies = [("request", entry.request), ("result", entry.result), ("error", entry.error)]
        said = {"number": entry.seq, "kind": entry.kind, "name": entry.name}
        return {
            "title": gettext("Entry %(number)s: %(kind)s %(name)s") % said,
            "entry": entry,
            "line": timeline_of([entry])[0],
            "bodies": [(name, show.pretty(value, None)) for name, value in bodies if value is not None],
            "trace": entry.trace,
            "seen": _seen(entry),
            "previous": beside.get(entry.seq - 1),
            "next": beside.get(entry.seq + 1),
        }


def _seen(entry: JournalEntry) -> list[tuple[str, str, dict[str, Any] | None]]:
    """The components that the call was made with: name, digest, and body if it is stored."""
    digests = {name: str(digest) for name, digest in (entry.digests or {}).items()}
    kept = {blob.id: blob for blob in Blob.objects.filter(id__in=digests.values(), encoding__startswith="json")}
    return [
        (name, digest, show.pretty(_body(blob_value(kept[digest])), None) if digest in kept else None)
        for name, digest in sorted(digests.items())
    ]


def _body(value: Any) -> Any:
    """A message of texts as one text."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and all(isinstance(block, dict) and block.get("type") == "text" for block in content):
        return "\n".join(block["text"] for block in content)
    return value
