"""Show the newest messages alone, by number or by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ravi_django.agents.memory.compaction.strategy import READ, from_the_users_words, group_start, leading
from ravi_django.agents.memory.compaction.tokens import BYTES_A_TOKEN, TokenCounter
from ravi_django.agents.memory.compaction.tool_results import trimmed
from ravi_django.agents.memory.transcript import is_users, user_before
from ravi_django.kernel import ChatMessage, Role
from ravi_django.kernel.checks import check_whole

_LEAST_READ = 8  # messages: in a smaller window the last call may lie before it


class SlidingWindowCompaction:
    """The newest messages, at most `max_messages`, in a form that every provider takes.

    - System messages at the front stay and count.
    - It starts at a user message where it can: in a long row of tool calls the user's words that led to it take
      the place of the oldest one, so the model never loses its task.
    - A tool result is never there without its call. The last call and its results stay together, and with the user's
      words, even when they alone are more than `max_messages`.

    The cost is that of the window; in a plain list also of a look back for the user's words, in a Transcript not.
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
        """How many system messages stay at the front; there is room for one other message."""
        lead = 0
        while lead < min(len(messages), self.max_messages - 1) and messages[lead].role is Role.SYSTEM:
            lead += 1
        return lead

    def _tail(self, messages: Sequence[ChatMessage], lead: int, start: int) -> list[ChatMessage]:
        """A window that would start amid a turn: with the user's words before it, where they fit."""
        pinned = user_before(messages, start, lead)
        if pinned is not None:
            after = _skip_results(messages, start + 1)
            if after == len(messages):  # no room for both: they come all the same
                after = _last_call(messages, lead)
            pin = [] if is_users(messages[after]) else [messages[pinned]]
            return pin + list(messages[after:])
        user = next((i for i in range(start, len(messages)) if is_users(messages[i])), None)
        after = _skip_results(messages, start) if user is None else user
        if after == len(messages):  # nothing but results: their call does not fit, it comes all the same
            after = _last_call(messages, lead)
        return list(messages[after:])


def _is_tool(messages: Sequence[ChatMessage], index: int) -> bool:
    return index < len(messages) and messages[index].role is Role.TOOL


def _skip_results(messages: Sequence[ChatMessage], start: int) -> int:
    while _is_tool(messages, start):
        start += 1
    return start


def _last_call(messages: Sequence[ChatMessage], lead: int) -> int:
    """Where the last turn with results begins; the end when the results have no call at all."""
    index = len(messages) - 1
    while index >= lead and messages[index].role is Role.TOOL:
        index -= 1
    return index if index >= lead else len(messages)


LEAST_CHARS = 200  # of a tool result: less says nothing


class TruncationCompaction:
    """The newest turns that fit into `max_tokens`, whatever they are; a call and its results go together.

    The system messages at the front, the user's last words and the last turn with its results stay. Where these alone
    are too many, the results of that turn are cut; what is too long even then, the provider refuses.

    model: whose tokens are counted; the run's own when None. Cost: that of what stays, in a Transcript.
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
                words = 0  # they are part of it from here on
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
