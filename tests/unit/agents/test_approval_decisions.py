"""What a handler may decide, and what follows from it: the same words and rules as of people."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, tool
from ravi_django.agents.approval import decision_of
from ravi_django.kernel import ApprovalDecision, LeaseLostError, Risk, SuspendInterrupt, UncertainEffectError
from tests.support.fake_context import FakeContext, call
from tests.support.react import TOOLS, agent, results_in, run


@tool(risk=lambda arguments: "high" if arguments["amount"] < 1000 else "critical")
def refund(amount: int) -> str:
    return f"refunded {amount}"


def handler(*decisions: Any) -> Any:
    """Gives one after the other; `asked` has what it was asked."""
    left = list(decisions)

    def decide(name: str, arguments: dict[str, Any], risk: Risk, ctx: Any) -> Any:
        decide.asked.append((arguments, risk.value))  # type: ignore[attr-defined]
        return left.pop(0)

    decide.asked = []  # type: ignore[attr-defined]
    return decide


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("decision", "told", "logged"),
    [
        (ApprovalDecision("approved"), "paid 3", "approved"),
        (ApprovalDecision("denied"), "denied: pay was not approved; do not call it again unchanged", "denied"),
        (
            ApprovalDecision("denied", reason="too much", by="ann"),
            "denied: too much; do not call it again unchanged",
            "denied",
        ),
        ("skipped", "skipped: pay was not called; go on without it", "skipped"),
        (ApprovalDecision("skipped", reason="no need"), "skipped: no need; go on without it", "skipped"),
        (
            ApprovalDecision("modified", {"amount": 2}, "half", "ann"),
            '[a person changed the arguments of this call (half); it was made with {"amount": 2}]\npaid 2',
            "modified",
        ),
        (ApprovalDecision("modified"), "denied: pay was not approved; do not call it again unchanged", "denied"),
        (
            ApprovalDecision("modified", [1]),  # type: ignore[arg-type]
            "denied: pay was not approved; do not call it again unchanged",
            "denied",
        ),
        (
            ApprovalDecision("yes"),  # type: ignore[arg-type]
            "denied: pay was not approved; do not call it again unchanged",
            "denied",
        ),
        (
            ApprovalDecision("modified", {"amount": {1, 2}}),
            "denied: the changed arguments do not fit: ",
            "denied",
        ),
        (
            ApprovalDecision("modified", {"amount": object()}),
            "denied: pay was not approved; do not call it again unchanged",
            "denied",
        ),
        (
            ApprovalDecision("modified", {"sum": 2}),
            "denied: the changed arguments do not fit: ",
            "denied",
        ),
    ],
)
async def test_what_a_handler_decides_is_what_the_model_is_told(decision: Any, told: str, logged: str) -> None:
    ctx = FakeContext([call("pay", "c7", amount=3), "done"], TOOLS)

    await run(agent(approval_handler=lambda *_: decision), ctx)

    ((call_id, text, is_error),) = results_in(ctx.views[-1])
    assert (call_id, is_error) == ("c7", logged not in ("approved", "modified"))
    assert text.startswith(told) if told.endswith(": ") else text == told
    assert [(kind, data["decision"]) for kind, data in ctx.logged] == [("approval", logged)]


@pytest.mark.asyncio
async def test_what_was_decided_beyond_a_word_is_logged_too() -> None:
    ctx = FakeContext([call("pay", "c7", amount=3), "done"], TOOLS)

    await run(agent(approval_handler=lambda *_: ApprovalDecision("modified", {"amount": 2}, "half", "ann")), ctx)

    assert ctx.logged == [
        (
            "approval",
            {
                "tool": "pay",
                "call_id": "c7",
                "risk": "high",
                "decision": "modified",
                "by": "ann",
                "reason": "half",
                "arguments": {"amount": 2},
            },
        )
    ]


@pytest.mark.parametrize(
    "odd", [None, 1, "yes", "modified", "APPROVED", b"approved", ["approved"], {"decision": "approved"}]
)
def test_an_odd_answer_is_a_denial(odd: Any) -> None:
    assert decision_of(odd) == ApprovalDecision("denied")


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_what_only_compares_like_a_word_is_a_denial() -> None:
    assert decision_of(_Equal()).decision == "denied"
    assert not decision_of(ApprovalDecision(_Equal())).allows  # type: ignore[arg-type]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [LeaseLostError("r", 1), UncertainEffectError("x"), SuspendInterrupt()],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_runtime_says_through_a_handler_is_no_decision(error: BaseException) -> None:
    def raising(*_: Any) -> bool:
        raise error

    with pytest.raises(type(error)):
        await ApprovalGate(raising).settle(FakeContext(), refund, call("refund", amount=1))  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_handler_cannot_change_the_call_but_by_its_decision() -> None:
    def sly(name: str, arguments: dict[str, Any], risk: Risk, ctx: Any) -> bool:
        arguments["amount"] = 5000
        return True

    made = call("refund", amount=1)

    settled = await ApprovalGate(sly).settle(FakeContext(), refund, made)  # type: ignore[arg-type]

    assert (settled.refusal, settled.call.arguments, made.arguments) == (None, {"amount": 1}, {"amount": 1})


@pytest.mark.asyncio
async def test_riskier_arguments_are_asked_about_again() -> None:
    decide = handler(ApprovalDecision("modified", {"amount": 5000}), False)

    settled = await ApprovalGate(decide).settle(FakeContext(), refund, call("refund", amount=1))  # type: ignore[arg-type]

    assert decide.asked == [({"amount": 1}, "high"), ({"amount": 5000}, "critical")]
    assert settled.refusal == "denied: refund was not approved; do not call it again unchanged"


@pytest.mark.asyncio
async def test_arguments_of_no_more_risk_are_not() -> None:
    decide = handler(ApprovalDecision("modified", {"amount": 2}))

    settled = await ApprovalGate(decide).settle(FakeContext(), refund, call("refund", amount=5000))  # type: ignore[arg-type]

    assert (len(decide.asked), settled.call.arguments) == (1, {"amount": 2})


@pytest.mark.asyncio
async def test_it_is_asked_about_again_so_often_and_no_more() -> None:
    risks = iter(["safe", "safe", "safe", "high", "high", "high", "critical", "critical", "critical"])

    @tool(risk=lambda arguments: next(risks))
    def climb(step: int) -> str:
        return "up"

    decide = handler(*(ApprovalDecision("modified", {"step": number}) for number in range(9)))
    gate = ApprovalGate(decide, "safe")

    settled = await gate.settle(FakeContext(), climb, call("climb", step=0))  # type: ignore[arg-type]

    assert len(decide.asked) <= 3
    assert settled.refusal is None or "changed 3 times" in settled.refusal


@pytest.mark.asyncio
async def test_a_context_that_cannot_ask_people_denies() -> None:
    ctx = FakeContext([call("pay", amount=3), "done"], TOOLS)

    await run(agent(approvers="staff"), ctx)

    assert "pay" not in [what for _, what in ctx.effects]
    ((_, text, is_error),) = results_in(ctx.views[-1])
    assert is_error and "nobody is configured to give it" in text
