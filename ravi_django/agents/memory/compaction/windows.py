"""Views of the newest messages, limited by their number or their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ravi_django.agents.memory.compaction.strategy import READ, from_the_users_words, group_start, leading
from ravi_django.agents.memory.compaction.tokens import BYTES_A_TOKEN, TokenCounter
from ravi_django.agents.memory.compaction.tool_results import trimmed
from ravi_django.agents.memory.transcript import is_users, user_before
from ravi_django.kernel import ChatMessage, Role
from ravi_django.kernel.checks import check_whole

_LEAST_READ = 8  # messages; a smaller window could miss the last call


class SlidingWindowCompaction:
    """The newest messages, at most `max_messages`, in a form that every provider accepts.

    - System messages at the front stay and count.
    - It starts at a user message. In a long row of tool calls the last user message replaces the oldest one, so the
      model never loses its task.
    - A tool result always has its call. The last call, its results and the user message stay even if they alone are
      more than `max_messages`.

    The cost depends on the window; in a list that is no Transcript, also on the search for the last user message.
    """

    def __init__(self, max_messages: int = 100) -> None:
        self.max_messages = check_whole("max_messages", max_messages)

    @property
    def reach(self) -> int | None:
        return max(self.max_messages, _LEAST_READ)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        lead = self._lead(messages)
        start = max(lead, len(messages) - max(1, self.max_messages - lead))
        head = list(messages[:lead])
        if start == lead and not _is_tool(messages, start):
            return head + list(messages[start:])
        if start < len(messages) and is_users(messages[start]):
            return head + list(messages[start:])
        return head + self._tail(messages, lead, start)

    def _lead(self, messages: Sequence[ChatMessage]) -> int:
        """The number of system messages that stay at the front. They leave room for one other message."""
        lead = 0
        while lead < min(len(messages), self.max_messages - 1) and messages[lead].role is Role.SYSTEM:
            lead += 1
        return lead

    def _tail(self, messages: Sequence[ChatMessage], lead: int, start: int) -> list[ChatMessage]:
        """A window that would start within a turn: put the user's last message before it."""
        pinned = user_before(messages, start, lead)
        if pinned is not None:
            after = _skip_results(messages, start + 1)
            if after == len(messages):  # no room for both: exceed the limit
                after = _last_call(messages, lead)
            pin = [] if is_users(messages[after]) else [messages[pinned]]
            return pin + list(messages[after:])
        user = next((i for i in range(start, len(messages)) if is_users(messages[i])), None)
        after = _skip_results(messages, start) if user is None else user
        if after == len(messages):  # only results, their call does not fit: exceed the limit
            after = _last_call(messages, lead)
        return list(messages[after:])


def _is_tool(messages: Sequence[ChatMessage], index: int) -> bool:
    return index < len(messages) and messages[index].role is Role.TOOL


def _skip_results(messages: Sequence[ChatMessage], start: int) -> int:
    while _is_tool(messages, start):
        start += 1
    return start


def _last_call(messages: Sequence[ChatMessage], lead: int) -> int:
    """The index of the last call with results; the end if the results have no call."""
    index = len(messages) - 1
    while index >= lead and messages[index].role is Role.TOOL:
        index -= 1
    return index if index >= lead else len(messages)


LEAST_CHARS = 200  # of a tool result; a shorter one is of no use


class TruncationCompaction:
    """The newest turns that fit into `max_tokens`; a call and its results stay together.

    The system messages at the front, the user's last message and the last turn with its results stay. If these alone do
    not fit, the results of that turn are cut. If they still do not fit, the provider will refuse the request.

    model: its tokenizer is used; None is the run's own model. Cost: that of the returned messages, in a Transcript.
    """

    reach = READ

    def __init__(self, max_tokens: int, *, model: Any = None) -> None:
        self.max_tokens = check_whole("max_tokens", max_tokens)
        self.model = model

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        counter = TokenCounter(self.model)
        if not messages or await counter.total(messages) <= self.max_tokens:
            return list(messages)
        lead = leading(messages)
        head = list(messages[:lead])
        room = self.max_tokens - counter.known(head)
        if lead == len(messages):
            return head
        user = user_before(messages, len(messages), lead)
        start = self._oldest_that_fits(messages, lead, user, room, counter)
        rest = from_the_users_words(messages, start, user, move=True)
        return head + await self._cut_results(rest, room, counter)

    def _oldest_that_fits(
        self, messages: Sequence[ChatMessage], lead: int, user: int | None, room: int, counter: TokenCounter
    ) -> int:
        start = group_start(messages, len(messages), lead)
        used = counter.known(messages[start:])
        words = 0 if user is None or user >= start else counter.known([messages[user]])
        while start > lead:
            before = group_start(messages, start, lead)
            used += counter.known(messages[before:start])
            if user is not None and before <= user < start:
                words = 0  # the turns from here on include it
            if used + words > room:
                break
            start = before
        return start

    async def _cut_results(self, rest: list[ChatMessage], room: int, counter: TokenCounter) -> list[ChatMessage]:
        results = [place for place, message in enumerate(rest) if message.role is Role.TOOL]
        chars = max(room, 0) * BYTES_A_TOKEN // max(len(results), 1)
        shown = rest
        while results and await counter.total(shown) > room and chars > LEAST_CHARS:
            chars = max(chars // 2, LEAST_CHARS)
            shown = [trimmed(m, chars, errors=True) if m.role is Role.TOOL else m for m in rest]
        return shown
