"""A pipeline that compacts only if the view does not fit into a token budget."""

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
    """Applies strategies in order until the view fits into `fraction` of the model's window, and at last drops the
    oldest turns (TruncationCompaction). A view that fits stays unchanged.

    fraction: leaves the rest of the window for the tools' schemas and the answer.
    max_tokens: instead of a fraction of the window.
    model: its window and tokenizer are used; None is the run's own model. An unknown window counts as
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
            raise ValueError(f"fraction must be above 0 and at most 1, not {fraction!r}")
        self.fraction = float(fraction)
        self.max_tokens = None if max_tokens is None else check_whole("max_tokens", max_tokens)
        self.model = model

    @property
    def reach(self) -> int | None:
        """The budget is in tokens, so at least READ messages."""
        return max(READ, reach_of(self.strategies) or 0)

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Apply strategies until the view fits."""
        counter = TokenCounter(self.model)
        budget = self.max_tokens or max(1, int(await counter.window() * self.fraction))
        view = normalized(messages)
        for strategy in (*self.strategies, TruncationCompaction(budget, model=self.model)):
            # A replay makes a recorded summary again even if another release counts fewer tokens.
            if await counter.total(view) <= budget and not summary_is_recorded():
                break
            view = await strategy.compact(view)
        return view if type(view) is list and view is not messages else list(view)
