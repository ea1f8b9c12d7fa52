"""What an agent says by itself, piece by piece: streamed at once, recorded with the next commit, silent on a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ravi_django.runtime import frames
from ravi_django.runtime.entries import Entry, storable

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

KIND = "chat.output"


class Outputs:
    """One row takes every piece up to the commit that it rides on; what comes after that begins another."""

    def __init__(self, ctx: DurableContext) -> None:
        self._ctx = ctx
        self._entry: Entry | None = None  # takes more, while it is not written
        self._recorded = 0  # characters of the row that a replay passes by, still to come

    def say(self, text: str) -> None:
        text = str(storable(text))
        if not text:
            return
        if self._recorded > 0:
            self._recorded -= len(text)
            return
        effects = self._ctx.effects
        entry = self._entry
        if entry is None or not any(note is entry for note in effects.notes):
            path = self._ctx._path()
            row = effects.journal.find(path)
            if row is not None:
                effects.identity(row, KIND, "", None)
                effects.journal.take_now(row)
                self._recorded = len(row.result["text"]) - len(text)
                return
            entry = self._entry = Entry(KIND, path, result={"text": ""})
            effects.note(entry)
        entry.result["text"] += text
        attempt = f"{effects.lease.epoch}.said"  # said again in a later lease, it replaces what came of it before
        effects.emit(frames.delta(effects.source, "text.delta", text, call=entry.path, attempt=attempt))
