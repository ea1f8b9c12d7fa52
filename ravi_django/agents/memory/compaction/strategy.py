"""The port: what makes less of a conversation.

Strategies one after the other.

Where a conversation may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ravi_django.agents.memory.transcript import is_users, keeps_of, normalized
from ravi_django.kernel import ChatMessage, Role

READ = 1_000  # messages read of a history by a strategy that cannot say in messages how far it looks
FROM_LEFT = 10  # times as many are read where a strategy before the bounding one leaves messages out


class CompactionStrategy(Protocol):
    """Makes a shorter list of messages; never changes the one it is given, nor the messages. The list that it returns
    is not to be changed either.

    It keeps the system messages at the front and the user's last words, and shows no tool result without its call.

    Optional attributes say how much of a long history has to be read: `reach`, how many of the newest messages it looks
    at (None or absent: all); `tail_safe`, whether it makes of the end of a conversation the same that it makes of it at
    the end of the whole; `one_to_one`, whether it leaves no message out (both absent: no).
    """

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]: ...


def is_strategy(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "compact", None))


def checked(strategies: Iterable[Any]) -> tuple[CompactionStrategy, ...]:
    """Raises TypeError for what is no strategy."""
    found = tuple(strategies)
    for strategy in found:
        if not is_strategy(strategy):
            raise TypeError(
                f"not a compaction strategy: {strategy!r}; pass objects with `async def compact(self, messages)`"
            )
    return found


def reach_of(strategies: Iterable[CompactionStrategy]) -> int | None:
    """How many of the newest messages strategies look at, one after the other; None for all.

    The first that is bounded decides, so long as those before it need no more than the end of the conversation.
    """
    dropping = False
    for strategy in strategies:
        reach: int | None = getattr(strategy, "reach", None)
        if reach is not None:
            return max(reach * FROM_LEFT, READ) if dropping else reach
        if not getattr(strategy, "tail_safe", False):
            return None
        dropping = dropping or not getattr(strategy, "one_to_one", False)
    return None


class CompactionPipeline:
    """Strategies one after the other, each on what the one before it left. Itself a strategy.

    A summary amid the messages is brought to the front first, in the place of what it stands for.
    """

    def __init__(self, *strategies: CompactionStrategy) -> None:
        self.strategies = checked(strategies)

    @property
    def reach(self) -> int | None:
        return reach_of(self.strategies)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        view = normalized(messages)
        for strategy in self.strategies:
            view = await strategy.compact(view)
        return view if type(view) is list and view is not messages else list(view)


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
