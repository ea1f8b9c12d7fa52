"""The messages of a conversation as a run sees them grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ravi_django.kernel import ChatMessage, Role


class Transcript(list[ChatMessage]):
    """A list that is only appended to, and knows where the user spoke: a window looks that up at every turn."""

    def __init__(self, messages: Iterable[ChatMessage] = ()) -> None:
        super().__init__(messages)
        self.users = [index for index, message in enumerate(self) if message.role is Role.USER]

    def append(self, message: ChatMessage) -> None:
        if message.role is Role.USER:
            self.users.append(len(self))
        super().append(message)


def user_before(messages: Sequence[ChatMessage], end: int, start: int) -> int | None:
    """The index of the last user message in `messages[start:end]`."""
    if isinstance(messages, Transcript):
        place = bisect_left(messages.users, end) - 1
        return messages.users[place] if place >= 0 and messages.users[place] >= start else None
    return next((index for index in range(end - 1, start - 1, -1) if messages[index].role is Role.USER), None)
