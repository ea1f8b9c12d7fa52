"""The newest messages."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.agents.transcript import is_users, user_before
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
