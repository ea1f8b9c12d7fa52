import asyncio
from datetime import timedelta

import pytest

from ravi_django.agents import (
    ExecutionTracker,
)
from ravi_django.kernel import (
    BudgetExhaustedError,
    ExecutionBudget,
)
from tests.support.fake_context import FakeContext, call
from tests.support.react import (
    TOOLS,
    agent,
    results_in,
    run,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("budget", "calls", "words"),
    [
        (ExecutionBudget(max_turns=2), 2, "model calls"),
        (ExecutionBudget(max_tokens=30), 2, "tokens"),
        (ExecutionBudget(max_tokens=20), 2, "tokens"),
        (ExecutionBudget(max_cost_usd=0.01), 1, "US dollars"),
    ],
)
async def test_a_run_stops_at_its_budget(budget: ExecutionBudget, calls: int, words: str) -> None:
    ctx = FakeContext([call("add", a=1, b=1)], TOOLS)  # each call: 15 tokens, 1 cent

    with pytest.raises(BudgetExhaustedError, match=words):
        await run(agent(budget=budget), ctx)

    assert len(ctx.views) == calls


async def test_a_run_stops_at_its_deadline() -> None:
    async def slow(_: str) -> None:
        ctx.clock += timedelta(seconds=6)

    ctx = FakeContext([call("add", a=1, b=1)], TOOLS, on_tool=slow)

    with pytest.raises(BudgetExhaustedError, match="seconds"):
        await run(agent(budget=ExecutionBudget(deadline_s=10)), ctx)

    assert len(ctx.views) == 2


async def test_every_run_has_a_budget_of_its_own() -> None:
    made = agent(budget=ExecutionTracker(ExecutionBudget(max_turns=1)))

    outputs = await asyncio.gather(*(run(made, FakeContext([str(number)])) for number in range(5)))

    assert outputs == ["0", "1", "2", "3", "4"]


async def test_a_risky_tool_never_runs_without_an_approver() -> None:
    ctx = FakeContext([call("pay", amount=3), "not allowed"], TOOLS)

    await run(agent(), ctx)

    assert ("turn1.call0", "pay") not in ctx.effects
    ((_, text, is_error),) = results_in(ctx.views[1])
    assert "needs a person's approval and nobody is configured to give it" in text
    assert is_error


@pytest.mark.parametrize(("decision", "text"), [(True, "paid 3"), (False, "denied: pay was not approved")])
async def test_a_risky_tool_runs_as_decided(decision: bool, text: str) -> None:
    ctx = FakeContext([call("pay", amount=3), "done"], TOOLS)

    await run(agent(approval_handler=lambda *_: decision), ctx)

    assert results_in(ctx.views[1])[0][1].startswith(text)
    assert (("turn1.call0", "pay") in ctx.effects) is decision
    assert ctx.logged[0][0] == "approval"


async def test_safe_tools_are_not_asked_about() -> None:
    asked: list[str] = []
    ctx = FakeContext([call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(approval_handler=lambda name, *_: bool(asked.append(name))), ctx)

    assert asked == []


async def test_the_tier_can_be_lowered() -> None:
    ctx = FakeContext([call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(approval_required_risk="safe"), ctx)

    assert results_in(ctx.views[1])[0][1].startswith("denied")
