"""HistoryProvider, the interface for stored conversations, and an implementation in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, Protocol

from ravi_django.agents.current import _task_run_id
from ravi_django.agents.memory.transcript import POSITION, close_dangling, is_users, keeps_of
from ravi_django.kernel import AgentId, ChatMessage, Role

Address = AgentId | str


class HistoryProvider(Protocol):
    """The turns of conversations, keyed by (agent, session), in the order they were stored.

    A turn may have the run that made it and its index in that run. Storing the same (run, index) again is a no-op, so
    a replay may store everything again. One object serves concurrent runs.

    Optional methods:
    `window(agent_id, session_id, *, limit)` returns the start of a prompt, see `window_of`. A provider that has it also
    stores summaries (system messages with `metadata`), and does not count them as turns.
    `drops_at_end(agent_id, session_id) -> bool` says whether the provider itself drops the calling run's turns when the
    run ends. Otherwise the agent calls `clear_run`.
    `seed(agent_id, session_id, messages) -> bool` stores older turns if the conversation has none, and returns whether
    it did. Of concurrent calls, also in several processes, only one stores.
    """

    async def append(self, agent_id: Address, session_id: str, message: ChatMessage, *, run_id: str = "") -> None:
        """Store one turn at the end. It has no index: a second call stores it again."""
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
        """Store turns at the end. With `run_id` and `start` they are the run's turns `start`, `start + 1`, …; those
        that are stored already stay unchanged."""
        ...

    async def get(
        self,
        agent_id: Address,
        session_id: str,
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ChatMessage]:
        """The newest `limit` turns (None: all) without the `offset` newest; oldest first. A call without a result is
        followed by an "interrupted" one, which is not stored and does not count.

        Inside a run, only the turns before the run's own: a replay reads what the first execution read.
        """
        ...

    async def count(self, agent_id: Address, session_id: str) -> int:
        """The number of stored turns."""

    async def clear(self, agent_id: Address, session_id: str) -> None:
        """Delete the conversation."""
        ...

    async def clear_run(self, agent_id: Address, session_id: str, run_id: str) -> None:
        """Delete one run's turns."""
        ...


class _Row(NamedTuple):
    message: ChatMessage
    run_id: str


@dataclass(slots=True)
class _Thread:
    rows: list[_Row] = field(default_factory=list)
    stored: set[tuple[str, int]] = field(default_factory=set)  # (run, index)


class InMemoryHistoryProvider:
    """A history that lasts as long as the process, for scripts and tests. Safe from any thread and event loop."""

    def __init__(self) -> None:
        self._threads: dict[tuple[str, str], _Thread] = {}
        self._lock = threading.Lock()

    async def append(self, agent_id: Address, session_id: str, message: ChatMessage, *, run_id: str = "") -> None:
        """Store one turn at the end."""
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
        """Store turns at the end; those stored already under (run, index) are skipped."""
        indexed = bool(run_id) and start is not None
        with self._lock:
            thread = self._threads.setdefault(_key(agent_id, session_id), _Thread())
            for index, message in enumerate(messages, start or 0):
                if indexed and (run_id, index) in thread.stored:
                    continue
                thread.rows.append(_Row(message, run_id))
                if indexed:
                    thread.stored.add((run_id, index))

    async def seed(self, agent_id: Address, session_id: str, messages: Sequence[ChatMessage]) -> bool:
        """Store older turns if there are none."""
        with self._lock:
            thread = self._threads.setdefault(_key(agent_id, session_id), _Thread())
            if any(keeps_of(row.message) is None for row in thread.rows):
                return False
            thread.rows[:0] = [_Row(message, "") for message in messages]
            return True

    async def get(
        self,
        agent_id: Address,
        session_id: str,
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ChatMessage]:
        """The newest `limit` turns (None: all) without the `offset` newest; oldest first."""
        with self._lock:
            return page_among(self._before(agent_id, session_id), limit, offset)

    async def window(self, agent_id: Address, session_id: str, *, limit: int | None = None) -> list[ChatMessage]:
        """See `window_of`."""
        with self._lock:
            return window_among(self._before(agent_id, session_id), limit)

    async def count(self, agent_id: Address, session_id: str) -> int:
        """The number of turns."""
        with self._lock:
            return sum(keeps_of(row.message) is None for row in self._rows(agent_id, session_id))

    async def clear(self, agent_id: Address, session_id: str) -> None:
        """Delete the conversation."""
        with self._lock:
            self._threads.pop(_key(agent_id, session_id), None)

    async def clear_run(self, agent_id: Address, session_id: str, run_id: str) -> None:
        """Delete one run's turns."""
        with self._lock:
            if thread := self._threads.get(_key(agent_id, session_id)):
                thread.rows = [row for row in thread.rows if row.run_id != run_id]
                thread.stored = {entry for entry in thread.stored if entry[0] != run_id}

    def _before(self, agent_id: Address, session_id: str) -> list[ChatMessage]:
        """The messages before the turns of the current run."""
        rows, run_id = self._rows(agent_id, session_id), _task_run_id.get()
        return [row.message for row in takewhile(lambda row: not run_id or row.run_id != run_id, rows)]

    def _rows(self, agent_id: Address, session_id: str) -> list[_Row]:
        thread = self._threads.get(_key(agent_id, session_id))
        return thread.rows if thread else []


def page_among(messages: Sequence[ChatMessage], limit: int | None, offset: int) -> list[ChatMessage]:
    """`HistoryProvider.get` of a whole conversation with its summaries."""
    turns = [message for message in messages if keeps_of(message) is None]
    end = max(0, len(turns) - max(0, offset))
    start = 0 if limit is None else max(0, end - max(0, limit))
    return close_dangling(turns[start:end], at_end=offset <= 0)


def window_among(messages: Sequence[ChatMessage], limit: int | None) -> list[ChatMessage]:
    """`window_of` a whole conversation with its summaries."""
    start = 0 if limit is None else max(0, len(messages) - limit)
    for position, message in enumerate(messages):
        message._wire.setdefault(POSITION, position)

    def older() -> tuple[ChatMessage | None, ChatMessage | None]:
        past = messages[:start][::-1]
        summary = next((message for message in past if keeps_of(message) is not None), None)
        return summary, next((message for message in past if is_users(message)), None)

    return window_of(messages[start:], limit, older)


Older = Callable[[], tuple[ChatMessage | None, ChatMessage | None]]


def window_of(page: Sequence[ChatMessage], limit: int | None, older: Older) -> list[ChatMessage]:
    """The start of a prompt: the last summary, the user's last message before the rest, and at most `limit` of the
    newest turns that the summary does not cover, every call with its result.

    `page` is the newest `limit` messages with summaries, oldest first. `older` returns the last summary and the last
    user message before the page, or None for each. It is called only if the page lacks one of them.
    """
    last = next((index for index in range(len(page) - 1, -1, -1) if keeps_of(page[index]) is not None), None)
    summary = None if last is None else page[last]
    rest = [index for index, message in enumerate(page) if keeps_of(message) is None]
    if last is not None and summary is not None:
        before = [index for index in rest if index < last]
        rest = rest[max(0, len(before) - (keeps_of(summary) or 0)) :]
    rest = rest if limit is None else rest[max(0, len(rest) - limit) :]
    while rest and page[rest[0]].role is Role.TOOL:  # its call is not there
        del rest[0]
    user = None
    if not rest or not is_users(page[rest[0]]):
        end = rest[0] if rest else len(page)
        user = next((page[index] for index in range(end - 1, -1, -1) if is_users(page[index])), None)
    needs_user = user is None and (not rest or not is_users(page[rest[0]]))
    if limit is not None and len(page) >= limit > 0 and (summary is None or needs_user):
        older_summary, older_user = older()
        summary = summary or older_summary
        user = older_user if needs_user else user
    front = [message for message in (summary, user) if message is not None]
    return front + close_dangling([page[index] for index in rest])


def _key(agent_id: Address, session_id: str) -> tuple[str, str]:
    return str(agent_id), str(session_id)
