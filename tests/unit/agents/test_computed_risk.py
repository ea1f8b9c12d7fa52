"""The risk of a call, computed from its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, ReActAgent, Toolbox, tool
from ravi_django.kernel import Effect, Risk, Tool
from ravi_django.testing import ScriptedModel


def by_amount(arguments: dict[str, Any]) -> str:
    return "safe" if arguments["amount"] < 100 else "high"


@tool(risk=by_amount)
def pay(to: str, amount: int = 500) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.mark.parametrize(
    ("arguments", "risk"),
    [
        ({"to": "ann", "amount": 5}, Risk.SAFE),
        ({"to": "ann", "amount": 100}, Risk.HIGH),
        ({"to": "ann", "amount": "5"}, Risk.SAFE),  # as the tool will understand it
        ({"to": "ann"}, Risk.HIGH),  # by its default
        ({"to": "ann", "amount": "many"}, Risk.CRITICAL),
        ({"amount": 5}, Risk.CRITICAL),
        ({"to": "ann", "amount": 5, "more": 1}, Risk.CRITICAL),
        ({}, Risk.CRITICAL),
    ],
)
def test_it_is_by_the_arguments_as_the_tool_will_get_them(arguments: dict[str, Any], risk: Risk) -> None:
    assert pay.risk_for(arguments) is risk


def fails(arguments: Any) -> Any:
    raise KeyError("amount")


async def later(arguments: Any) -> str:
    return "safe"


@pytest.mark.parametrize(
    "rule", [fails, lambda _: None, lambda _: "harmless", lambda _: 0, lambda _: True, lambda _: ["safe"]]
)
def test_a_rule_that_fails_or_gives_nonsense_counts_as_critical(rule: Any) -> None:
    made = tool(risk=rule)(_plain)

    assert made.risk_for({}) is Risk.CRITICAL


def _plain() -> None:
    """Plain."""


def test_a_rule_cannot_change_the_call() -> None:
    class Loose(Tool):
        name = "loose"

        def compute_risk(self, arguments: dict[str, Any]) -> str:  # type: ignore[override]
            arguments["inner"]["amount"] = 0
            return "safe"

    given = {"inner": {"amount": 500}}

    assert Loose().risk_for(given) is Risk.SAFE
    assert given == {"inner": {"amount": 500}}


def test_without_a_rule_it_is_the_tools_own() -> None:
    assert tool(risk="high")(_plain).risk_for({"anything": 1}) is Risk.HIGH


def test_where_no_call_is_at_hand_the_worst_is_assumed() -> None:
    assert (pay.risk, pay.promised_effect) == (Risk.CRITICAL, Effect.AT_MOST_ONCE)
    assert Toolbox([pay]).by_risk("critical") == [pay]
    assert Toolbox([pay]).by_risk("safe") == []
    assert repr(pay) == "<tool pay risk=by arguments>"
    assert tool(risk=by_amount, effect="transactional")(_plain).promised_effect is Effect.TRANSACTIONAL


@pytest.mark.parametrize("risk", [later, Risk, dict])
def test_what_cannot_compute_a_risk_is_refused(risk: Any) -> None:
    with pytest.raises(TypeError, match="a tool's risk is a word or a sync function"):
        tool(risk=risk)


def test_the_gate_is_asked_about_the_call() -> None:
    gate = ApprovalGate()

    assert not gate.covers(pay, {"to": "ann", "amount": 5})
    assert gate.covers(pay, {"to": "ann", "amount": 500})
    assert gate.covers(pay, {"amount": "5"})


def test_an_agents_spec_says_so() -> None:
    agent = ReActAgent("payer", model=ScriptedModel([]), tools=[pay])

    assert [(made["risk"], made["effect"]) for made in agent.spec()["tools"]] == [("by arguments", "at_most_once")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_calls": 0}, "max_calls is a whole number from 1"),
        ({"max_calls": True}, "max_calls is"),
        ({"max_calls": 1.5}, "max_calls is"),
        ({"max_result_bytes": -1}, "max_result_bytes is"),
        ({"max_result_bytes": "1k"}, "max_result_bytes is"),
    ],
)
def test_a_cap_that_cannot_be_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tool(**options)(_plain)
