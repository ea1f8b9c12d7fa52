from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ravi_django.agents import ExecutionTracker
from ravi_django.kernel import BudgetExhaustedError, ExecutionBudget

START = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("budget", "used", "words"),
    [
        (ExecutionBudget(max_tokens=100), {"tokens": 50}, "100 of 100 tokens"),
        (ExecutionBudget(max_turns=2), {"turns": 1}, "2 of 2 model calls"),
        (ExecutionBudget(max_cost_usd=0.5), {"cost": 0.25}, "0.5 of 0.5 US dollars"),
    ],
)
def test_a_budget_may_be_used_up_but_nothing_more_begun(budget: ExecutionBudget, used: Any, words: str) -> None:
    tracker = ExecutionTracker(budget)
    tracker.consume(**used)
    tracker.check()
    tracker.consume(**used)

    with pytest.raises(BudgetExhaustedError, match=words):
        tracker.check()


def test_using_more_than_the_budget_raises_and_is_counted() -> None:
    tracker = ExecutionTracker(ExecutionBudget(max_tokens=100))

    with pytest.raises(BudgetExhaustedError, match="120 of 100 tokens; raise max_tokens"):
        tracker.consume(tokens=120, turns=1)

    assert (tracker.tokens, tracker.turns) == (120, 1)


def test_an_unlimited_budget_never_raises() -> None:
    tracker = ExecutionTracker(ExecutionBudget())

    tracker.consume(tokens=10**12, turns=10**6, cost=1e9)
    tracker.check(START)


def test_unknown_price_counts_nothing() -> None:
    tracker = ExecutionTracker(ExecutionBudget(max_cost_usd=0.1))

    tracker.consume(cost=None)

    assert tracker.cost == 0.0


def test_deadline_counts_from_the_start() -> None:
    tracker = ExecutionTracker(ExecutionBudget(deadline_s=10)).fresh(START)
    tracker.check(START + timedelta(seconds=9.9))

    with pytest.raises(BudgetExhaustedError, match=r"10.0 of 10.0 seconds; raise deadline_s"):
        tracker.check(START + timedelta(seconds=10))


def test_fresh_has_used_nothing_and_leaves_the_other_alone() -> None:
    tracker = ExecutionTracker(ExecutionBudget(max_turns=1))
    tracker.consume(turns=1)

    fresh = tracker.fresh()
    fresh.check()

    assert (fresh.turns, tracker.turns) == (0, 1)
    assert fresh.budget is tracker.budget
