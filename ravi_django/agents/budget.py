"""The budget of one run of an agent, and its use."""

from __future__ import annotations

from datetime import datetime

from ravi_django.kernel import BudgetExhaustedError, ExecutionBudget


class ExecutionTracker:
    """Counts tokens, turns, dollars and time against a budget. Each run has its own tracker, made by `fresh()`.

    `max_agents` of the budget is not counted here. A model call with an unknown price counts 0 dollars.
    """

    def __init__(self, budget: ExecutionBudget, *, started_at: datetime | None = None) -> None:
        self.budget = budget
        self.started_at = started_at
        self.tokens = 0
        self.turns = 0
        self.cost = 0.0  # US dollars

    def fresh(self, started_at: datetime | None = None) -> ExecutionTracker:
        """A tracker for another run: the same budget, nothing used. A deadline needs `started_at`."""
        return ExecutionTracker(self.budget, started_at=started_at)

    def consume(self, *, tokens: int = 0, turns: int = 0, cost: float | None = None) -> None:
        """Add usage. Raises BudgetExhaustedError above the budget."""
        self.tokens += tokens
        self.turns += turns
        self.cost += cost or 0.0
        for name, used, limit in self._counters():
            if limit is not None and used > limit:
                raise _exhausted(name, used, limit)

    def check(self, now: datetime | None = None) -> None:
        """Raise BudgetExhaustedError if nothing is left for another model call, or the deadline has passed at `now`."""
        for name, used, limit in self._counters():
            if limit is not None and used >= limit:
                raise _exhausted(name, used, limit)
        if now is not None and self.started_at is not None and self.budget.deadline_s is not None:
            elapsed = (now - self.started_at).total_seconds()
            if elapsed >= self.budget.deadline_s:
                raise _exhausted("deadline_s", round(elapsed, 3), self.budget.deadline_s)

    def _counters(self) -> list[tuple[str, float, float | None]]:
        budget = self.budget
        return [
            ("max_tokens", self.tokens, budget.max_tokens),
            ("max_turns", self.turns, budget.max_turns),
            ("max_cost_usd", self.cost, budget.max_cost_usd),
        ]


_UNITS = {"max_tokens": "tokens", "max_turns": "model calls", "max_cost_usd": "US dollars", "deadline_s": "seconds"}


def _exhausted(name: str, used: float, limit: float) -> BudgetExhaustedError:
    spent = f"{used:g} of {limit:g}" if name == "max_cost_usd" else f"{used} of {limit}"
    return BudgetExhaustedError(
        f"the agent's budget is used up: {spent} {_UNITS[name]}; raise {name} or give it a smaller task"
    )
