"""Caps of a run's tools: calls, time and bytes of results. Over a cap a call is an error, and the run continues.

The sums come from the journal of one generation, so `continue_as_new` resets them. The budget limits the whole run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Recorded
from ravi_django.kernel import Tool

KIND = "tool.call"
WAITED = "waited_s"  # in a row's result: the seconds that the call waited, see `Stopwatch`


@dataclass(slots=True)
class Spent:
    """Sums over the recorded calls and those made in this lease; a recalled call is not counted again."""

    calls: int = 0
    seconds: float = 0.0  # without waiting
    bytes: int = 0  # of results, as the model got them
    by_tool: Counter[str] = field(default_factory=Counter)  # calls
    asked: Counter[str] = field(default_factory=Counter)  # calls that wait for an approval now

    @classmethod
    def of(cls, rows: Iterable[Recorded]) -> Spent:
        spent = cls()
        for row in rows:
            result = row.result or {}
            spent.begin(row.name)
            took = (row.finished_at - row.started_at).total_seconds()
            spent.end(max(0.0, took - result.get(WAITED, 0.0)), weight(result.get("content", [])))
        return spent

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


# ------------------------------------------------------------------------------------------------- own time


class Stopwatch:
    """Times a call. `waited` is the time that it waited for people, children, inner calls or a free thread."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._waits = 0  # that have not ended
        self._since = 0.0
        self.waited = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self._waits:
            self._since = time.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self.waited += time.monotonic() - self._since

    def carry(self, seconds: float) -> None:
        """Add time of an earlier lease."""
        self._begun -= seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun


_watch: ContextVar[Stopwatch | None] = ContextVar("ravi_stopwatch", default=None)  # of the call around this code


def own_time() -> float:
    """Seconds that the call around this code has taken, without waiting."""
    watch = _watch.get()
    return 0.0 if watch is None else watch.elapsed - watch.waited


def carry(seconds: float) -> None:
    """Add time that the call around this code took in an earlier lease."""
    if (watch := _watch.get()) is not None:
        watch.carry(seconds)


@contextmanager
def watched() -> Iterator[Stopwatch]:
    """Time a call; for an outer call this is waiting."""
    with waiting():
        watch = Stopwatch()
        token = _watch.set(watch)
        try:
            yield watch
        finally:
            _watch.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """Around time that the call around this code waits."""
    watch = _watch.get()
    with nullcontext() if watch is None else watch.paused():
        yield


def timeout_of(tool: Tool) -> float:
    return float(tool.timeout or conf.TOOL_TIMEOUT_S)
