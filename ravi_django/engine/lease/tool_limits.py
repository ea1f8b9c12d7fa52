"""Limits of a run's tools: calls, time and bytes of results. Over a limit a call is an error, and the run continues.

The sums come from the journal of one generation, so `continue_as_new` resets them. The budget limits the whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Recorded
from ravi_django.kernel import Tool

KIND = "tool.call"
WAITED = "waited_s"  # in a row's result: the seconds that the call waited, see `stopwatch.py`


@dataclass(slots=True)
class ToolUsage:
    """Sums over the recorded calls and those made in this lease; a recalled call is not counted again."""

    calls: int = 0
    seconds: float = 0.0  # without waiting
    bytes: int = 0  # of results, as the model got them
    by_tool: Counter[str] = field(default_factory=Counter)  # calls
    asked: Counter[str] = field(default_factory=Counter)  # calls that wait for an approval now

    @classmethod
    def of(cls, rows: Iterable[Recorded]) -> ToolUsage:
        usage = cls()
        for row in rows:
            result = row.result or {}
            usage.begin(row.name)
            took = (row.finished_at - row.started_at).total_seconds()
            usage.end(max(0.0, took - result.get(WAITED, 0.0)), weight(result.get("content", [])))
        return usage

    def begin(self, name: str) -> None:
        self.calls += 1
        self.by_tool[name] += 1

    def end(self, seconds: float, size: int) -> None:
        self.seconds += seconds
        self.bytes += size

    @contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """Around the wait for an approval of a call."""
        self.asked[name] += 1
        try:
            yield
        finally:
            self.asked[name] -= 1

    def refusal(self, tool: Tool) -> str | None:
        """The error text for the model if a call that was started exceeds a cap."""
        return self._refusal(tool, self.calls, self.by_tool[tool.name])

    def refusal_to_ask(self, tool: Tool) -> str | None:
        """The same for a call that needs an approval, counted after all that wait for one."""
        ahead = self.by_tool[tool.name] + self.asked[tool.name]
        return self._refusal(tool, self.calls + self.asked.total() + 1, ahead + 1)

    def _refusal(self, tool: Tool, calls: int, of_tool: int) -> str | None:
        if calls > conf.MAX_TOOL_CALLS:
            cap = f"{conf.MAX_TOOL_CALLS} tool calls"
        elif tool.max_calls is not None and of_tool > tool.max_calls:
            cap = f"{tool.max_calls} calls of {tool.name}"
        elif self.seconds >= conf.MAX_TOOL_S:
            cap = f"{conf.MAX_TOOL_S:g} s of tool calls"
        elif self.bytes >= conf.MAX_TOOL_BYTES:
            cap = f"{conf.MAX_TOOL_BYTES} bytes of tool results"
        else:
            return None
        return f"the run's limit of {cap} is reached; answer with what you have"


def weight(content: list[dict[str, Any]]) -> int:
    """Bytes of content blocks: of texts in UTF-8, of other values as JSON."""
    total = 0
    for block in content:
        for value in block.values():
            if isinstance(value, str):
                total += len(value) if value.isascii() else len(value.encode(errors="replace"))
            elif value is not None:
                total += len(to_json(value, fallback=str))
    return total


def timeout_of(tool: Tool) -> float:
    return float(tool.timeout or conf.TOOL_TIMEOUT_S)
