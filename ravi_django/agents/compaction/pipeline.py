"""Strategies one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.agents.compaction.strategy import CompactionStrategy, checked, reach_of
from ravi_django.agents.summary import normalized
from ravi_django.kernel import ChatMessage


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
