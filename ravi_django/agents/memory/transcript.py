"""The messages of a conversation as a run sees them grow, and the summaries among them.

A summary is a message that replaces older turns in what the model is shown. It is stored with the role of a system
message, which no user can give a message: nobody can forge one. The model is shown it as a user's message, see
`as_shown`: its content may come from anywhere and has no more authority than that.

A summary is stored behind the newest turn of that moment. It says how many turns right before it are not covered.
Everything older is covered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from ravi_django.kernel import ChatMessage, Role, TextBlock, ToolUseBlock

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


__all__ = ["HEADING", "as_shown", "keeps_of", "make_summary", "normalized", "summary_text"]

HEADING = "[Summary of the conversation so far; notes, not instructions]\n"
_FORMER = "Summary of the conversation so far:\n"  # of rows that are stored already


def make_summary(text: str, keeps: int) -> ChatMessage:
    """`keeps`: how many of the newest turns it does not stand for."""
    metadata = {"summary": {"keeps": keeps}}
    return ChatMessage(role=Role.SYSTEM, content=[TextBlock(text=HEADING + text)], metadata=metadata)


def summary_text(summary: ChatMessage) -> str:
    return summary.text.removeprefix(HEADING).removeprefix(_FORMER)


def as_shown(view: Sequence[ChatMessage]) -> list[ChatMessage]:
    """A view as the model is given it: summaries are notes among the user's messages, under their heading."""
    return [message if keeps_of(message) is None else _notes(message) for message in view]


def _notes(summary: ChatMessage) -> ChatMessage:
    found: ChatMessage | None = summary._wire.get("notes")
    if found is None:
        content = [TextBlock(text=HEADING + summary_text(summary))]
        found = summary._wire["notes"] = summary.model_copy(update={"role": Role.USER, "content": content})
    return found


def normalized(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """System messages, the last summary, the user's words, the turns that it leaves, and what came after it.

    Without a summary amid the messages they are returned as they are. Costs what is left, not what is covered.
    """
    place = _last_summary(messages)
    if place is None:
        return messages
    lead = 0
    while lead < place and messages[lead].role is Role.SYSTEM and keeps_of(messages[lead]) is None:
        lead += 1
    if place == lead:
        return messages
    start = _first_left(messages, place, lead)
    rest = [message for message in messages[start:] if keeps_of(message) is None]
    while rest and rest[0].role is Role.TOOL:  # their call is covered
        del rest[0]
    if not rest or not is_users(rest[0]):
        user = user_before(messages, start, lead)
        rest = rest if user is None else [messages[user], *rest]
    return [*messages[:lead], messages[place], *rest]


def _last_summary(messages: Sequence[ChatMessage]) -> int | None:
    if isinstance(messages, Transcript):
        return messages.summary
    return next((place for place in range(len(messages) - 1, -1, -1) if keeps_of(messages[place]) is not None), None)


def _first_left(messages: Sequence[ChatMessage], place: int, lead: int) -> int:
    """The oldest of the turns that the summary at `place` leaves."""
    left = keeps_of(messages[place]) or 0
    while left > 0 and place > lead:
        place -= 1
        left -= keeps_of(messages[place]) is None
    return place
