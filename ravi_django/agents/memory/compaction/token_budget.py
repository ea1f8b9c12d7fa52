"""A pipeline that shortens only what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ravi_django.agents.memory.compaction.strategy import READ, CompactionStrategy, checked, reach_of
from ravi_django.agents.memory.compaction.summarization import summary_is_recorded
from ravi_django.agents.memory.compaction.tokens import TokenCounter
from ravi_django.agents.memory.compaction.windows import TruncationCompaction
from ravi_django.agents.memory.transcript import normalized
from ravi_django.kernel import ChatMessage
from ravi_django.kernel.checks import check_whole


class TokenBudgetComposed:
    """The strategies in order until what they leave fits into `fraction` of the model's window; if it never does, the
    oldest turns go (TruncationCompaction). What fits is shown as it is.

    fraction: the rest is for the tools' schemas and for the answer.
    max_tokens: instead of a fraction of the window.
    model: whose window and tokens count; the run's own when None. A window that is not known counts as
    `tokens.DEFAULT_WINDOW`.
    """

    def __init__(
        self,
        *strategies: CompactionStrategy,
        fraction: float = 0.80,
        max_tokens: int | None = None,
        model: Any = None,
    ) -> None:
        self.strategies = checked(strategies)
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ValueError(f"fraction is above 0 and at most 1, not {fraction!r}")
        self.fraction = float(fraction)
        self.max_tokens = None if max_tokens is None else check_whole("max_tokens", max_tokens)
        self.model = model

    @property
    def reach(self) -> int | None:
        """A budget in tokens bounds nothing in messages, and truncation comes last of all."""
        return max(READ, reach_of(self.strategies) or 0)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        counter = TokenCounter(self.model)
        budget = self.max_tokens or max(1, int(await counter.window() * self.fraction))
        view = normalized(messages)
        for strategy in (*self.strategies, TruncationCompaction(budget, model=self.model)):
            # A recorded summary is asked for whatever a tokenizer of another release makes of the messages.
            if await counter.total(view) <= budget and not summary_is_recorded():
                break
            view = await strategy.compact(view)
        return view if type(view) is list and view is not messages else list(view)
