"""Where a conversation may be cut."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.agents.summary import keeps_of
from ravi_django.agents.transcript import is_users
from ravi_django.kernel import ChatMessage, Role


def group_start(messages: Sequence[ChatMessage], end: int, floor: int) -> int:
    """Where the last group of `messages[floor:end]` begins: a message, or a call with its results. `end > floor`."""
    start = end - 1
    while start > floor and messages[start].role is Role.TOOL:
        start -= 1
    return start


def leading(messages: Sequence[ChatMessage]) -> int:
    """How many system messages there are at the front, a summary included."""
    lead = 0
    while lead < len(messages) and messages[lead].role is Role.SYSTEM:
        lead += 1
    return lead


def split_lead(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], ChatMessage | None, int]:
    """The system messages at the front, the summary among them apart, and how many they were."""
    lead = leading(messages)
    summary = next((message for message in reversed(messages[:lead]) if keeps_of(message) is not None), None)
    return [message for message in messages[:lead] if keeps_of(message) is None], summary, lead


def from_the_users_words(
    messages: Sequence[ChatMessage], start: int, user: int | None, *, move: bool = False
) -> list[ChatMessage]:
    """`messages[start:]` with the user's words before it, the message at `user`, when it does not begin with words of
    the user. With `move`, it begins at its first words of the user instead, if there are any."""
    while start < len(messages) and messages[start].role is Role.TOOL:  # their call is not there
        start += 1
    if start < len(messages) and is_users(messages[start]):
        return list(messages[start:])
    if move:
        later = next((place for place in range(start, len(messages)) if is_users(messages[place])), None)
        if later is not None:
            return list(messages[later:])
    return [*([] if user is None or user >= start else [messages[user]]), *messages[start:]]
