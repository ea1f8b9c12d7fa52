"""Who is asked: an agent's approvers, a tool's own, and what cannot be one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, OrchestratorAgent, ReActAgent, SubAgentConfig, rebuild_agent, tool
from ravi_django.agents.approvers import Approvers
from ravi_django.agents.spec import AgentSpec, validate_spec
from ravi_django.kernel import Addressees, InvalidInputError, Risk, Tool
from ravi_django.testing import ScriptedModel
from tests.support.react import TOOLS, Model, agent


@tool(risk="high", approvers="group:tool")
def owned() -> None: ...


@tool
def plain() -> None: ...


STEPS = [("group:finance", timedelta(hours=4)), "group:directors"]


@pytest.mark.parametrize(
    ("given", "tool_made", "risk", "to"),
    [
        (None, plain, Risk.HIGH, None),
        (None, owned, Risk.HIGH, "group:tool"),
        ("staff", plain, Risk.HIGH, "staff"),
        ("staff", owned, Risk.HIGH, "group:tool"),
        ({"owned": "staff"}, owned, Risk.HIGH, "staff"),
        ({"high": "staff"}, owned, Risk.HIGH, "staff"),
        ({"high": "staff"}, owned, Risk.CRITICAL, "group:tool"),
        ({"*": "staff"}, owned, Risk.HIGH, "group:tool"),
        ({"*": "staff"}, plain, Risk.HIGH, "staff"),
        ({"plain": "owner", "high": "staff"}, plain, Risk.HIGH, "owner"),
        (STEPS, plain, Risk.HIGH, [{"to": "group:finance", "within": 14400.0}, "group:directors"]),
        ({"to": "staff", "within": 60}, plain, Risk.HIGH, {"to": "staff", "within": 60.0}),
        (Addressees.of("staff"), plain, Risk.HIGH, "staff"),
    ],
)
def test_the_nearest_word_names_who_is_asked(given: Any, tool_made: Tool, risk: Risk, to: Any) -> None:
    found = Approvers.of(given).for_call(tool_made, risk)

    assert found == (None if to is None else Addressees.of(to))


@pytest.mark.parametrize(
    "given",
    [
        None,
        "staff",
        STEPS,
        {"owned": STEPS, "critical": "group:directors", "*": "staff"},
        {"high": "staff"},
        {"steps": [{"to": "staff"}], "four_eyes": True},
        {"high": {"steps": [{"to": "staff"}], "four_eyes": False}},
    ],
)
def test_its_json_reads_as_the_same(given: Any) -> None:
    found = Approvers.of(given)

    assert Approvers.of(found.to_json()) == found


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ("finance", "approvers", "'finance' is no address"),
        ("", "approvers", "is no address"),
        ([], "approvers", "steps"),
        ({}, "approvers", "approvers is empty"),
        ({"pay": "finance"}, "approvers.pay", "'finance' is no address"),
        ({"pay": None}, "approvers.pay", "to: Input should be a valid string"),
        ({"pya": "staff"}, "approvers.pya", "no tool of the agent; the tools are: add, echo, pay, whoami"),
        ([("staff", 0)], "approvers", "within"),
        (["staff", "group:x"], "approvers", "no time limit"),
        (7, "approvers", "to: Input should be a valid string"),
    ],
)
def test_what_names_nobody_is_refused_with_its_place(given: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as found:
        agent(approvers=given)

    assert found.value.field == field
    assert words in str(found.value)


def test_nobody_is_named_without_a_word_and_the_spec_says_nothing() -> None:
    assert "approvers" not in agent().spec()
    assert all(not {"approval", "approvers"} & made.keys() for made in agent().spec()["tools"])


def test_a_spec_says_who_is_asked() -> None:
    made = ReActAgent(
        "payer",
        model=Model(),
        tools=[tool(risk="high", approval="always", approvers="group:tool")(_pay)],
        approvers={"high": "staff"},
    )

    said = made.spec()

    assert said["approvers"] == {"high": "staff"}
    assert (said["tools"][0]["approval"], said["tools"][0]["approvers"]) == ("always", "group:tool")
    again = rebuild_agent(said, tools=made.tools, build_model=lambda name, **_: ScriptedModel([], name=name))
    assert again.approval.approvers == made.approval.approvers


def _pay(amount: int) -> None:
    """Pay."""


def test_an_orchestrator_has_approvers_too() -> None:
    child = ReActAgent("child", model=Model())
    options: dict[str, Any] = {"model": Model(), "tools": TOOLS, "sub_agents": [SubAgentConfig(child)]}

    made = OrchestratorAgent("boss", approvers={"handoff_child": "staff"}, **options)

    assert made.spec()["approvers"] == {"handoff_child": "staff"}
    with pytest.raises(InvalidInputError, match=r"approvers\.handoff_other"):
        OrchestratorAgent("boss", approvers={"handoff_other": "staff"}, **options)


# ------------------------------------------------------------------------------------------------------ tools


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"approval": "sometimes"}, "approval", "by_risk, always, never, not 'sometimes'"),
        ({"approval": None}, "approval", "not None"),
        ({"approvers": "finance"}, "a tool's approvers", "'finance' is no address"),
        ({"approvers": {"high": "staff"}}, "a tool's approvers", ""),
    ],
)
def test_a_tools_own_policy_is_checked_at_the_decorator(options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as found:
        tool(**options)

    assert found.value.field == field
    assert words in str(found.value)


@pytest.mark.parametrize(("name", "value"), [("approval", "sometimes"), ("approvers", "finance")])
def test_that_of_a_class_is_checked_with_its_agent(name: str, value: str) -> None:
    class Pay(Tool):
        risk = Risk.HIGH

    made = Pay()
    made.name = "pay"
    setattr(made, name, value)

    with pytest.raises(InvalidInputError, match="of the tool pay"):
        ReActAgent("payer", model=Model(), tools=[made])


@pytest.mark.parametrize(
    ("approval", "risk", "covered"),
    [
        ("by_risk", "safe", False),
        ("by_risk", "high", True),
        ("always", "safe", True),
        ("never", "critical", False),
        ("nonsense", "safe", True),
    ],
)
def test_a_tool_says_when_it_is_asked_about(approval: str, risk: str, covered: bool) -> None:
    made = tool(risk=risk)(_pay)
    made.approval = approval

    assert ApprovalGate().covers(made, {"amount": 1}) is covered


# ------------------------------------------------------------------------------------------------------ specs


def test_a_specs_json_has_them_only_where_somebody_is_named() -> None:
    assert "approvers" not in AgentSpec(model="m").to_json()
    spec = AgentSpec(model="m", tool_names=["pay"], approvers={"pay": ["staff"], "*": [("owner", 60), "staff"]})
    assert spec.to_json()["approvers"] == {"pay": "staff", "*": [{"to": "owner", "within": 60.0}, "staff"]}
    assert validate_spec(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ("finance", "approvers", "approvers: to: 'finance' is no address"),
        ({"pay": "finance"}, "approvers", "approvers.pay: "),
        ({"pya": "staff"}, "approvers.pya", "the tools are: handoff_helper, pay"),
    ],
)
def test_a_spec_that_names_nobody_is_refused(given: Any, field: str, words: str) -> None:
    spec = {"model": "m", "tool_names": ["pay"], "sub_agents": ["react/helper"], "approvers": given}

    with pytest.raises(InvalidInputError) as found:
        validate_spec(spec)

    assert found.value.field == field
    assert words in str(found.value)
