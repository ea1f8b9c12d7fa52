"""What a handler may decide, and what follows from it: the same words and rules as of people."""

from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, tool
from ravi_django.agents.react.approval import decision_of
from ravi_django.kernel import (
    CancellationError,
    HumanInput,
    LeaseLostError,
    Risk,
    SuspendInterrupt,
    ToolArgumentsError,
    UncertainEffectError,
)
from tests.support.cases import case
from tests.support.fake_context import FakeContext, call
from tests.support.react import TOOLS, agent, results_in, run


@tool(risk=lambda arguments: "high" if arguments["amount"] < 1000 else "critical")
def refund(amount: int) -> str:
    return f"refunded {amount}"


DENIED = "denied: pay was not approved; do not call it again unchanged"


def handler(*decisions: Any) -> Any:
    """Gives one after the other; `asked` has what it was asked."""
    left = list(decisions)

    def decide(name: str, arguments: dict[str, Any], risk: Risk, ctx: Any) -> Any:
        decide.asked.append((arguments, risk.value))
        return left.pop(0)

    decide.asked = []
    return decide


@pytest.mark.parametrize(("decision", "told", "logged"), [
    (HumanInput("approve"), "paid 3", "approved"), (HumanInput("deny"), DENIED, "denied"),
    (HumanInput("deny", reason="too much", by="ann"), "denied: too much; do not call it again unchanged",
        "denied"),
    ("skipped", "skipped: pay was not called; go on without it", "skipped"),
    (HumanInput("skip", reason="no need"), "skipped: no need; go on without it", "skipped"),
    (HumanInput("edit", arguments={"amount": 2}, reason="half", by="ann"),
        '[a person changed the arguments of this call (half); it was made with {"amount": 2}]\npaid 2', "modified"),
    (HumanInput("edit"), DENIED, "denied"), (HumanInput("edit", arguments=[1]), DENIED, "denied"),
    (HumanInput("yes"), DENIED, "denied"),
    (HumanInput("edit", arguments={"amount": {1, 2}}), "denied: the changed arguments do not fit: ", "denied"),
    (HumanInput("edit", arguments={"amount": object()}), DENIED, "denied"),
    (HumanInput("edit", arguments={"sum": 2}), "denied: the changed arguments do not fit: ", "denied"),
])  # fmt: skip
async def test_what_a_handler_decides_is_what_the_model_is_told(decision: Any, told: str, logged: str) -> None:
    ctx = FakeContext([call("pay", "c7", amount=3), "done"], TOOLS)
    await run(agent(approval_handler=lambda *_: decision), ctx)
    ((call_id, text, is_error),) = results_in(ctx.views[-1])
    assert (call_id, is_error) == ("c7", logged not in ("approved", "modified"))
    assert text.startswith(told) if told.endswith(": ") else text == told
    assert [(kind, data["decision"]) for kind, data in ctx.logged] == [("approval", logged)]


async def test_a_handler_changes_a_call_by_its_decision_alone() -> None:
    def sly(name: str, arguments: dict[str, Any], risk: Risk, ctx: Any) -> bool:
        arguments["amount"] = 5000
        return True

    made = call("refund", amount=1)
    settled = await ApprovalGate(sly).settle(FakeContext(), refund, made)
    assert (settled.refusal, settled.call.arguments, made.arguments) == (None, {"amount": 1}, {"amount": 1})
    # what the runtime says through a handler is no decision
    for error in [LeaseLostError("r", 1), UncertainEffectError("x"), SuspendInterrupt()]:
        with case(error):

            def raising(*_: Any) -> bool:
                raise error

            with pytest.raises(type(error)):
                await ApprovalGate(raising).settle(FakeContext(), refund, call("refund", amount=1))
    # what was decided beyond a word is logged too
    ctx = FakeContext([call("pay", "c7", amount=3), "done"], TOOLS)
    await run(
        agent(approval_handler=lambda *_: HumanInput("edit", arguments={"amount": 2}, reason="half", by="ann")), ctx
    )
    assert ctx.logged == [
        ("approval",
            {"tool": "pay", "call_id": "c7", "risk": "high", "decision": "modified", "by": "ann", "reason": "half",
            "arguments": {"amount": 2}}),
    ]  # fmt: skip
    # a context that cannot ask people denies
    ctx = FakeContext([call("pay", amount=3), "done"], TOOLS)
    await run(agent(approvers="staff"), ctx)
    assert "pay" not in [what for _, what in ctx.effects]
    ((_, text, is_error),) = results_in(ctx.views[-1])
    assert is_error and "nobody is configured to give it" in text


def test_an_odd_answer_is_a_denial() -> None:
    for odd in [None, 1, "yes", "modified", "APPROVED", b"approved", ["approved"], {"decision": "approved"}]:
        assert decision_of(odd) == HumanInput("deny"), odd
    # what only compares like a word is a denial
    assert decision_of(_Equal()).decision == "denied"
    with pytest.raises(TypeError, match="pass a str"):
        HumanInput(_Equal())


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


async def test_only_riskier_arguments_are_asked_about_again() -> None:
    decide = handler(HumanInput("edit", arguments={"amount": 5000}), False)
    settled = await ApprovalGate(decide).settle(FakeContext(), refund, call("refund", amount=1))
    assert decide.asked == [({"amount": 1}, "high"), ({"amount": 5000}, "critical")]
    assert settled.refusal == "denied: refund was not approved; do not call it again unchanged"
    # arguments of no more risk are not
    decide = handler(HumanInput("edit", arguments={"amount": 2}))
    settled = await ApprovalGate(decide).settle(FakeContext(), refund, call("refund", amount=5000))
    assert (len(decide.asked), settled.call.arguments) == (1, {"amount": 2})
    # it is asked about again so often and no more
    risks = iter(["safe", "safe", "safe", "high", "high", "high", "critical", "critical", "critical"])

    @tool(risk=lambda arguments: next(risks))
    def climb(step: int) -> str:
        return "up"

    decide = handler(*(HumanInput("edit", arguments={"step": number}) for number in range(9)))
    gate = ApprovalGate(decide, "safe")
    settled = await gate.settle(FakeContext(), climb, call("climb", step=0))
    assert len(decide.asked) <= 3
    assert settled.refusal is None or "changed 3 times" in settled.refusal


@tool(risk="high")
def pay(amount: int) -> None: ...


@tool(risk="critical")
def wipe() -> None: ...


@tool(risk=lambda arguments: "high")
def computed(amount: int) -> None: ...


@tool
def look() -> None: ...


async def ask(gate: ApprovalGate, ctx: FakeContext) -> str | None:
    return (await gate.settle(ctx, pay, call("pay", "c7", amount=3))).refusal


async def test_which_calls_are_asked_about() -> None:
    for required, covered in [
        (None, ["pay", "wipe"]), ("safe", ["look", "pay", "wipe"]), ("high", ["pay", "wipe"]),
        (Risk.CRITICAL, ["wipe"]),
    ]:  # fmt: skip
        with case(required, covered):
            gate = ApprovalGate(required=required)
            assert [made.name for made in (look, pay, wipe) if gate.covers(made, {})] == covered
    # nobody is asked about a call that does not fit
    for made in [pay, computed]:
        for handler in [None, True]:
            with case(made, handler):
                asked: list[Any] = []
                gate = ApprovalGate(handler and (lambda *arguments: not asked.append(arguments)))
                ctx = FakeContext()
                misfit = call(made.name, "c7", amonut=3)
                with pytest.raises(ToolArgumentsError) as words:
                    made.validate(misfit.arguments)
                refusal = (await gate.settle(ctx, made, misfit)).refusal
                assert (refusal, asked, ctx.logged[0][1]["decision"]) == (str(words.value), [], "invalid")
                assert gate.covers(made, misfit.arguments)


async def test_only_a_yes_of_the_handler_approves() -> None:
    for decision, approved in [
        (True, True), ("approved", True), (False, False), ("denied", False), (None, False), (1, False),
        ("yes", False),
    ]:  # fmt: skip
        for is_async in [False, True]:
            with case(decision, approved, is_async):

                async def later(*_: Any) -> Any:
                    return decision

                ctx = FakeContext()
                refusal = await ask(ApprovalGate(later if is_async else lambda *_: decision), ctx)
                assert (refusal is None) is approved
                assert ctx.logged[0][1]["decision"] == ("approved" if approved else "denied")

    # the handler sees the call
    seen: list[Any] = []
    ctx = FakeContext()
    await ask(ApprovalGate(lambda *arguments: bool(seen.append(arguments))), ctx)
    assert seen == [("pay", {"amount": 3}, Risk.HIGH, ctx)]

    # a raising handler denies
    def failing(*_: Any) -> bool:
        raise RuntimeError("the secret is 7")

    ctx = FakeContext()
    refusal = await ask(ApprovalGate(failing), ctx)
    assert "secret" not in refusal
    assert ctx.logged[0][1]["decision"] == "denied"

    # a cancelled run is no denial
    def failing(*_: Any) -> bool:
        raise CancellationError("stop")

    with pytest.raises(CancellationError):
        await ask(ApprovalGate(failing), FakeContext())
    # handler must be callable
    with pytest.raises(TypeError, match="approval_handler must be a function"):
        ApprovalGate("ask bob")
    # a call too deep to be looked at is refused
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    gate, deep_call = ApprovalGate(lambda *_: True), call("pay", "c7", amount=deep)
    settled = await gate.settle(FakeContext(), pay, deep_call)
    assert settled.refusal == "the arguments are nested more than 50 levels deep"
