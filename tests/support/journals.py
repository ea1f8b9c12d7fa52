"""Journals written as rows, for pages that show them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from ravi_django.models import JournalEntry, Run

MODEL_S, TOOL_S = 0.4, 0.1


def rows_of(run: Run, *lines: tuple[float, float, dict[str, Any]]) -> None:
    """Each line: seconds after the run's creation at which the row's work began and ended, and its columns."""
    begin = run.created_at
    made = [_row(run, seq, begin, *line) for seq, line in enumerate(lines, run.next_seq)]
    JournalEntry.objects.bulk_create(made)
    Run.objects.filter(id=run.id).update(next_seq=run.next_seq + len(made))


def long(run: Run, rows: int) -> None:
    """A model call and a tool call by turns."""
    Run.objects.filter(id=run.id).update(created_at=timezone.now() - timedelta(seconds=rows))
    run.refresh_from_db()
    rows_of(run, *[_step(number) for number in range(rows)])


def _step(number: int) -> tuple[float, float, dict[str, Any]]:
    text = [{"type": "text", "text": f"answer {number} of many"}]
    if number % 2:
        call = {"kind": "tool.call", "name": "look_up", "request": {"arguments": {"order": number}}}
        return number, number + TOOL_S, {**call, "path": f"turn{number}.call", "result": {"content": text}}
    call = {"kind": "llm.call", "name": "gpt", "input_tokens": 900, "output_tokens": 40, "cost": "0.001"}
    return number, number + MODEL_S, {**call, "path": f"turn{number}.1", "result": {"content": text}}


def _row(run: Run, seq: int, begin: datetime, since: float, until: float, columns: dict[str, Any]) -> JournalEntry:
    times = {"started_at": begin + timedelta(seconds=since), "finished_at": begin + timedelta(seconds=until)}
    return JournalEntry(run=run, seq=seq, **{"path": f"@{seq}", "epoch": 1, **times, **columns})
