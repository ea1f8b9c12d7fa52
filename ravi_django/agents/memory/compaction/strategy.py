"""The interface of compaction strategies, a pipeline of them, and the places where a conversation may be cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ravi_django.agents.memory.transcript import is_users, keeps_of, normalized
from ravi_django.kernel import ChatMessage, Role

READ = 1_000  # messages read for a strategy whose limit is not in messages
FROM_LEFT = 10  # read this many times more if a strategy before the limiting one drops messages


class CompactionStrategy(Protocol):
    """Returns a shorter list of messages. It changes neither its argument nor the messages, and its caller must not
    change the returned list.

    It keeps the system messages at the front and the user's last message, and no tool result without its call.

    Optional attributes say how much of a long history must be read. `reach`: how many of the newest messages it looks
    at (None or absent: all). `tail_safe`: it compacts the end of a conversation the same without the older messages.
    `one_to_one`: it drops no message. The last two default to False.
    """

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The shorter view of `messages`, which are oldest first."""


def checked(strategies: Iterable[Any]) -> tuple[CompactionStrategy, ...]:
    """Raises TypeError for an object that is not a strategy."""
    known = tuple(strategies)
    for strategy in known:
        if isinstance(strategy, type) or not callable(getattr(strategy, "compact", None)):
            raise TypeError(
                f"not a compaction strategy: {strategy!r}; pass objects with `async def compact(self, messages)`"
            )
    return known


def reach_of(strategies: Iterable[CompactionStrategy]) -> int | None:
    """How many of the newest messages a sequence of strategies looks at; None for all.

    The first strategy with a `reach` decides, if all before it are `tail_safe`.
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
    """A strategy that applies others in turn. A summary first replaces the messages that it covers."""

    def __init__(self, *strategies: CompactionStrategy) -> None:
        self.strategies = checked(strategies)

    @property
    def reach(self) -> int | None:
        """How many of the newest messages the strategies read; None for all."""
        return reach_of(self.strategies)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Apply the strategies in order."""
        view = normalized(messages)
        for strategy in self.strategies:
            view = await strategy.compact(view)
        return view if type(view) is list and view is not messages else list(view)


def group_start(messages: Sequence[ChatMessage], end: int, floor: int) -> int:
    """The index where the last group of `messages[floor:end]` begins: a message, or a call with its results.
    `end > floor`."""
    start = end - 1
    while start > floor and messages[start].role is Role.TOOL:
        start -= 1
    return start


def leading(messages: Sequence[ChatMessage]) -> int:
    """The number of system messages at the front, with a summary."""
    lead = 0
    while lead < len(messages) and messages[lead].role is Role.SYSTEM:
        lead += 1
    return lead


def split_lead(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], ChatMessage | None, int]:
    """The system messages at the front without the summary, the summary, and the number of all of them."""
    lead = leading(messages)
    summary = next((message for message in reversed(messages[:lead]) if keeps_of(message) is not None), None)
    return [message for message in messages[:lead] if keeps_of(message) is None], summary, lead


def from_user_message(
    messages: Sequence[ChatMessage], start: int, user: int | None, *, move: bool = False
) -> list[ChatMessage]:
    """`messages[start:]`, with the message at `user` before it unless it begins with a user's message. With `move` it
    begins at its first user message instead, if it has one."""
    while start < len(messages) and messages[start].role is Role.TOOL:  # its call is not there
        start += 1
    if start < len(messages) and is_users(messages[start]):
        return list(messages[start:])
    if move:
        later = next((index for index in range(start, len(messages)) if is_users(messages[index])), None)
        if later is not None:
            return list(messages[later:])
    return [*([] if user is None or user >= start else [messages[user]]), *messages[start:]]
