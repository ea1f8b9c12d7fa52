"""What one run of an agent may use, and what it has used."""

from __future__ import annotations

from datetime import datetime

from ravi_django.kernel import BudgetExhaustedError, ExecutionBudget


class ExecutionTracker:
    """Counts tokens, turns, dollars and time against a budget. One tracker a run: agents take `fresh()` ones.

    `max_agents` of the budget belongs to whoever spawns; it is not counted here. A model call whose price is unknown
    counts 0 dollars.
    """

    def __init__(self, budget: ExecutionBudget, *, started_at: datetime | None = None) -> None:
        self.budget = budget
        self.started_at = started_at
        self.tokens = 0
        self.turns = 0
        self.cost = 0.0  # US dollars

    def fresh(self, started_at: datetime | None = None) -> ExecutionTracker:
        """A tracker for another run: the same budget, nothing used. `started_at` is needed for a deadline."""
        return ExecutionTracker(self.budget, started_at=started_at)

    def consume(self, *, tokens: int = 0, turns: int = 0, cost: float | None = None) -> None:
        """Add what was used. Raises BudgetExhaustedError when it is more than the budget."""
        self.tokens += tokens
        self.turns += turns
        self.cost += cost or 0.0
        for name, used, limit in self._counters():
            if limit is not None and used > limit:
                raise _exhausted(name, used, limit)

    def check(self, now: datetime | None = None) -> None:
        """Raise BudgetExhaustedError when nothing is left for another model call, or time is up at `now`."""
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
    return BudgetExhaustedError(
        f"the agent's budget is used up: {used:g} of {limit:g} {_UNITS[name]}; raise {name} or give it a smaller task"
        if name == "max_cost_usd"
        else f"the agent's budget is used up: {used} of {limit} {_UNITS[name]}; raise {name} or give it a smaller task"
    )
