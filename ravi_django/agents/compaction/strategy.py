"""The port: what makes less of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ravi_django.kernel import ChatMessage

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
