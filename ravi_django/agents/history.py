"""Where conversations are kept: the port, and the one in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ravi_django.agents._task import _task_run_id
from ravi_django.kernel import AgentId, ChatMessage

Address = AgentId | str


class HistoryProvider(Protocol):
    """The turns of conversations, keyed by (agent, session), in the order they were stored.

    Every turn may carry the run that made it and its index in that run; storing the same (run, index) again is a
    no-op, so a replay may store everything again. One object serves concurrent runs.
    """

    async def append(self, agent_id: Address, session_id: str, message: ChatMessage, *, run_id: str = "") -> None:
        """Store one turn at the end. It has no index: called twice, it is stored twice."""
        ...

    async def append_many(
        self,
        agent_id: Address,
        session_id: str,
        messages: Sequence[ChatMessage],
        *,
        run_id: str = "",
        start: int | None = None,
    ) -> None:
        """Store turns at the end. With `run_id` and `start` they are the run's turns `start`, `start + 1`, …, and
        those that are stored already stay as they are."""
        ...

    async def get(
        self,
        agent_id: Address,
        session_id: str,
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ChatMessage]:
        """The newest `limit` turns (None: all) after leaving out the `offset` newest; oldest first.

        Inside a run, only what was there before the run's own turns: a replay reads what the first execution read.
        """
        ...

    async def count(self, agent_id: Address, session_id: str) -> int: ...

    async def clear(self, agent_id: Address, session_id: str) -> None:
        """Forget the conversation."""
        ...

    async def clear_run(self, agent_id: Address, session_id: str, run_id: str) -> None:
        """Forget one run's turns."""
        ...


@dataclass(frozen=True, slots=True)
class _Row:
    message: ChatMessage
    run_id: str
    index: int | None  # in the run


@dataclass(slots=True)
class _Thread:
    rows: list[_Row] = field(default_factory=list)
    stored: set[tuple[str, int]] = field(default_factory=set)  # (run, index)


class InMemoryHistoryProvider:
    """A history that lives as long as the process: for scripts and tests. Safe from any thread and loop."""

    def __init__(self) -> None:
        self._threads: dict[tuple[str, str], _Thread] = {}
        self._lock = threading.Lock()

    async def append(self, agent_id: Address, session_id: str, message: ChatMessage, *, run_id: str = "") -> None:
        await self.append_many(agent_id, session_id, [message], run_id=run_id)

    async def append_many(
        self,
        agent_id: Address,
        session_id: str,
        messages: Sequence[ChatMessage],
        *,
        run_id: str = "",
        start: int | None = None,
    ) -> None:
        indexed = bool(run_id) and start is not None
        with self._lock:
            thread = self._threads.setdefault(_key(agent_id, session_id), _Thread())
            for index, message in enumerate(messages, start or 0):
                if indexed and (run_id, index) in thread.stored:
                    continue
                thread.rows.append(_Row(message, run_id, index if indexed else None))
                if indexed:
                    thread.stored.add((run_id, index))

    async def get(
        self,
        agent_id: Address,
        session_id: str,
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ChatMessage]:
        run_id = _task_run_id.get()
        with self._lock:
            rows = self._rows(agent_id, session_id)
            end = len(rows)
            if run_id:
                end = next((i for i, row in enumerate(rows) if row.run_id == run_id), end)
            end = max(0, end - max(0, offset))
            start = 0 if limit is None else max(0, end - max(0, limit))
            return [row.message for row in rows[start:end]]

    async def count(self, agent_id: Address, session_id: str) -> int:
        with self._lock:
            return len(self._rows(agent_id, session_id))

    async def clear(self, agent_id: Address, session_id: str) -> None:
        with self._lock:
            self._threads.pop(_key(agent_id, session_id), None)

    async def clear_run(self, agent_id: Address, session_id: str, run_id: str) -> None:
        with self._lock:
            if thread := self._threads.get(_key(agent_id, session_id)):
                thread.rows = [row for row in thread.rows if row.run_id != run_id]
                thread.stored = {entry for entry in thread.stored if entry[0] != run_id}

    def _rows(self, agent_id: Address, session_id: str) -> list[_Row]:
        thread = self._threads.get(_key(agent_id, session_id))
        return thread.rows if thread else []


def _key(agent_id: Address, session_id: str) -> tuple[str, str]:
    return str(agent_id), str(session_id)
