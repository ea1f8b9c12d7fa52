from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, tool
from ravi_django.kernel import CancellationError, Risk, ToolArgumentsError
from tests.support.fake_context import FakeContext, call


@tool(risk="high")
def pay(amount: int) -> None: ...


@tool(risk="critical")
def wipe() -> None: ...


@tool(risk=lambda arguments: "high")
def refund(amount: int) -> None: ...


@tool
def look() -> None: ...


async def ask(gate: ApprovalGate, ctx: FakeContext) -> str | None:
    return (await gate.settle(ctx, pay, call("pay", "c7", amount=3))).refusal  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("required", "covered"),
    [(None, ["pay", "wipe"]), ("safe", ["look", "pay", "wipe"]), ("high", ["pay", "wipe"]), (Risk.CRITICAL, ["wipe"])],
)
def test_the_tier_and_up_is_covered(required: Any, covered: list[str]) -> None:
    gate = ApprovalGate(required=required)

    assert [made.name for made in (look, pay, wipe) if gate.covers(made, {})] == covered


@pytest.mark.asyncio
async def test_with_nobody_to_ask_it_is_denied() -> None:
    ctx = FakeContext()

    refusal = await ask(ApprovalGate(), ctx)

    assert refusal is not None
    assert refusal.startswith("denied: pay is of high risk")
    assert ctx.logged == [("approval", {"tool": "pay", "call_id": "c7", "risk": "high", "decision": "denied"})]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("decision", "approved"),
    [(True, True), ("approved", True), (False, False), ("denied", False), (None, False), (1, False), ("yes", False)],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_only_a_clear_yes_approves(decision: Any, approved: bool, is_async: bool) -> None:
    async def later(*_: Any) -> Any:
        return decision

    ctx = FakeContext()

    refusal = await ask(ApprovalGate(later if is_async else lambda *_: decision), ctx)

    assert (refusal is None) is approved
    assert ctx.logged[0][1]["decision"] == ("approved" if approved else "denied")


@pytest.mark.asyncio
async def test_the_handler_sees_the_call() -> None:
    seen: list[Any] = []
    ctx = FakeContext()

    await ask(ApprovalGate(lambda *arguments: bool(seen.append(arguments))), ctx)

    assert seen == [("pay", {"amount": 3}, Risk.HIGH, ctx)]


@pytest.mark.asyncio
async def test_a_raising_handler_denies() -> None:
    def handler(*_: Any) -> bool:
        raise RuntimeError("the secret is 7")

    ctx = FakeContext()

    refusal = await ask(ApprovalGate(handler), ctx)

    assert refusal is not None
    assert "secret" not in refusal
    assert ctx.logged[0][1]["decision"] == "denied"


@pytest.mark.asyncio
async def test_a_cancelled_run_is_no_denial() -> None:
    def handler(*_: Any) -> bool:
        raise CancellationError("stop")

    with pytest.raises(CancellationError):
        await ask(ApprovalGate(handler), FakeContext())


def test_handler_must_be_callable() -> None:
    with pytest.raises(TypeError, match="approval_handler is a function"):
        ApprovalGate("ask bob")  # type: ignore[arg-type]


@pytest.mark.asyncio
@pytest.mark.parametrize("made", [pay, refund], ids=["static", "computed"])
@pytest.mark.parametrize("handler", [None, True])
async def test_nobody_is_asked_about_a_call_that_does_not_fit(made: Any, handler: Any) -> None:
    asked: list[Any] = []
    gate = ApprovalGate(handler and (lambda *arguments: not asked.append(arguments)))
    ctx = FakeContext()
    misfit = call(made.name, "c7", amonut=3)
    with pytest.raises(ToolArgumentsError) as words:
        made.validate(misfit.arguments)

    refusal = (await gate.settle(ctx, made, misfit)).refusal  # type: ignore[arg-type]

    assert (refusal, asked) == (str(words.value), [])
    assert ctx.logged[0][1]["decision"] == "invalid"
    assert gate.covers(made, misfit.arguments)


@pytest.mark.asyncio
async def test_a_call_too_deep_to_be_looked_at_is_refused() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]

    gate, deep_call = ApprovalGate(lambda *_: True), call("pay", "c7", amount=deep)

    settled = await gate.settle(FakeContext(), pay, deep_call)  # type: ignore[arg-type]

    assert settled.refusal == "the arguments are nested more than 50 levels deep"
