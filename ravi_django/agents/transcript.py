"""The messages of a conversation as a run sees them grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from ravi_django.kernel import ChatMessage, Role, ToolUseBlock

OURS = "ravi."  # begins the name of a message that stands as the user's, and is the library's
CORRECTION = f"{OURS}correction"  # what is wrong with the answer before it


def is_users(message: ChatMessage) -> bool:
    """Whether the user said it."""
    return message.role is Role.USER and not (message.name or "").startswith(OURS)


class Transcript(list[ChatMessage]):
    """A list that is only appended to, and knows what a view looks up at every turn, so that a long run does not look
    through all of it each time."""

    def __init__(self, messages: Iterable[ChatMessage] = ()) -> None:
        super().__init__()
        self.users: list[int] = []  # where the user spoke
        self.spoken: list[int] = []  # whatever has nothing to do with tools
        self.summary: int | None = None  # where the last one is
        self.counted: dict[str, tuple[int, int]] = {}  # by way of counting: (messages counted, their tokens)
        self._mapped: dict[str, Transcript] = {}
        for message in messages:
            self.append(message)

    def append(self, message: ChatMessage) -> None:
        if is_users(message):
            self.users.append(len(self))
        elif keeps_of(message) is not None:
            self.summary = len(self)
        if message.role is not Role.TOOL and not makes_calls(message):
            self.spoken.append(len(self))
        super().append(message)

    def mapped(self, key: str, change: Callable[[ChatMessage], ChatMessage]) -> Transcript:
        """Each message changed, those that are new since the last time alone. Not to be changed by the caller."""
        found = self._mapped.setdefault(key, Transcript())
        for place in range(len(found), len(self)):
            found.append(change(self[place]))
        return found


def makes_calls(message: ChatMessage) -> bool:
    """Whether an assistant's turn asks for tools; looked up once a message."""
    if message.role is not Role.ASSISTANT:
        return False
    found: bool | None = message._wire.get("makes_calls")
    if found is None:
        found = message._wire["makes_calls"] = any(isinstance(block, ToolUseBlock) for block in message.content)
    return found


def keeps_of(message: ChatMessage) -> int | None:
    """Of a summary, how many turns before it it leaves; None for any other message."""
    if message.role is not Role.SYSTEM or not message.metadata:
        return None
    summary = message.metadata.get("summary")
    keeps = summary.get("keeps") if isinstance(summary, dict) else None
    return keeps if isinstance(keeps, int) else None


def user_before(messages: Sequence[ChatMessage], end: int, start: int) -> int | None:
    """The index of the last user message in `messages[start:end]`."""
    if isinstance(messages, Transcript):
        place = bisect_left(messages.users, end) - 1
        return messages.users[place] if place >= 0 and messages.users[place] >= start else None
    return next((index for index in range(end - 1, start - 1, -1) if is_users(messages[index])), None)
