"""Summaries in a conversation: a message that stands for turns which are no longer shown.

It is kept with the role of a system message, which no user can give one: so nobody forges a summary, and it is never
taken for the user's words. The model is shown it as a user's message, see `as_shown`: what it tells of may come from
anywhere, and has no more authority than that.

It is stored behind the newest turn that was there when it was made, and says how many turns right before it it does
*not* stand for. Everything older is covered.
"""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.agents.transcript import Transcript, is_users, keeps_of, user_before
from ravi_django.kernel import ChatMessage, Role, TextBlock

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
