"""A run's journal as a timeline: a line for each entry, with its place in time, its cost, and its bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext

from ravi_django.admin import show
from ravi_django.models import JournalEntry, Phase


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, ready for the template."""

    entry: JournalEntry
    tone: str  # model, tool, life or other: the bar's colour
    failed: bool
    summary: str  # what was said or done, in a line
    offset: float  # where the bar begins and how long it is, in percent of the page's time span
    width: float
    duration: str
    since: str  # from the page's first moment to the entry's beginning
    tokens: str
    cost: str
    bodies: list[tuple[str, dict[str, Any]]]  # (request, result, error; see show.pretty)


def lines(entries: Sequence[JournalEntry]) -> list[Line]:
    if not entries:
        return []
    begin = min(entry.started_at for entry in entries)
    span = (max(entry.finished_at for entry in entries) - begin).total_seconds() or 1.0
    return [_line(entry, begin, span) for entry in entries]


def _line(entry: JournalEntry, begin: Any, span: float) -> Line:
    offset = 100 * (entry.started_at - begin).total_seconds() / span
    took = entry.finished_at - entry.started_at
    bodies = (
        ("request", show.pretty(entry.request)),
        ("result", show.pretty(entry.result)),
        ("error", show.pretty(entry.error)),
    )
    return Line(
        entry=entry,
        tone=tone(entry),
        failed=failed(entry),
        summary=summary(entry),
        offset=round(min(offset, 99.0), 2),
        width=round(max(0.8, min(100 * took.total_seconds() / span, 100 - offset)), 2),
        duration=show.duration(took) if took else "",
        since=f"+{show.duration(entry.started_at - begin)}",
        tokens="" if entry.input_tokens is None else show.tokens(entry.input_tokens, entry.output_tokens),
        cost=show.money(entry.cost) if entry.input_tokens is not None else "",
        bodies=[(name, shown) for name, shown in bodies if shown],
    )


def tone(entry: JournalEntry) -> str:
    match entry.kind.partition(".")[0]:
        case "llm":
            return "model"
        case "tool":
            return "tool"
        case "run":
            return "life"
        case _:
            return "other"


def failed(entry: JournalEntry) -> bool:
    return entry.error is not None or (isinstance(entry.result, dict) and entry.result.get("is_error") is True)


def summary(entry: JournalEntry) -> str:
    """The entry in a few words: the model's answer, the tool's arguments and result, the error."""
    if entry.error is not None:
        return show.snippet(f"{entry.error.get('type', '')}: {entry.error.get('message', '')}")
    if entry.phase == Phase.STARTED:
        return gettext("started; the result is in an entry of its own")
    if entry.phase == Phase.PAUSED:
        return show.snippet(_waited_for(entry.result))
    said = _said(entry.result)
    if entry.kind == "tool.call":
        arguments = (entry.request or {}).get("arguments") if isinstance(entry.request, dict) else None
        asked = ", ".join(f"{name}={value}" for name, value in arguments.items()) if isinstance(arguments, dict) else ""
        return show.snippet(f"({asked}) → {said}")
    return show.snippet(said)


def _waited_for(pause: Any) -> str:
    if isinstance(pause, dict) and pause.get("pause") == "child":
        return gettext("paused for the run %(run)s; the result is in an entry of its own") % {"run": pause.get("run")}
    return gettext("paused for a person's input; the next attempt gets it")


def _said(result: Any) -> str:
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
