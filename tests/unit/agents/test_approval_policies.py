"""Who is asked about which call: approvers, a tool's own policy, and risk computed from arguments."""

from datetime import timedelta
from typing import Any

import pytest

from ravi_django.agents import ApprovalGate, OrchestratorAgent, ReActAgent, SubAgentConfig, Toolbox, rebuild_agent, tool
from ravi_django.agents.spec.spec import AgentSpec, validate_spec
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.kernel import Addressees, Effect, InvalidInputError, Risk, Tool
from ravi_django.testing import ScriptedModel
from tests.support.cases import case, refused
from tests.support.react import TOOLS, Model, agent


@tool(risk="high", approvers="group:tool")
def owned() -> None: ...


@tool
def plain() -> None: ...


STEPS = [("group:finance", timedelta(hours=4)), "group:directors"]


def test_who_is_asked() -> None:
    # the nearest word names who is asked
    for given, tool_made, risk, to in [
        (None, plain, Risk.HIGH, None), (None, owned, Risk.HIGH, "group:tool"),
        ("staff", plain, Risk.HIGH, "staff"), ("staff", owned, Risk.HIGH, "group:tool"),
        ({"owned": "staff"}, owned, Risk.HIGH, "staff"), ({"high": "staff"}, owned, Risk.HIGH, "staff"),
        ({"high": "staff"}, owned, Risk.CRITICAL, "group:tool"), ({"*": "staff"}, owned, Risk.HIGH, "group:tool"),
        ({"*": "staff"}, plain, Risk.HIGH, "staff"),
        ({"plain": "owner", "high": "staff"}, plain, Risk.HIGH, "owner"),
        (STEPS, plain, Risk.HIGH, [{"to": "group:finance", "within": 14400.0}, "group:directors"]),
        ({"to": "staff", "within": 60}, plain, Risk.HIGH, {"to": "staff", "within": 60.0}),
        (Addressees.of("staff"), plain, Risk.HIGH, "staff"),
    ]:  # fmt: skip
        with case(given, tool_made, risk, to):
            found = Approvers.of(given).for_call(tool_made, risk)
            assert found == (None if to is None else Addressees.of(to))
    # its json reads as the same
    for given in [
        None, "staff", STEPS, {"owned": STEPS, "critical": "group:directors", "*": "staff"}, {"high": "staff"},
        {"steps": [{"to": "staff"}], "four_eyes": True}, {"high": {"steps": [{"to": "staff"}], "four_eyes": False}},
    ]:  # fmt: skip
        with case(given):
            found = Approvers.of(given)
            assert Approvers.of(found.to_json()) == found
    # what names nobody is refused with its place
    for given, field, words in [
        ("finance", "approvers", "'finance' is no address"), ("", "approvers", "is no address"),
        ([], "approvers", "steps"), ({}, "approvers", "approvers is empty"),
        ({"pay": "finance"}, "approvers.pay", "'finance' is no address"),
        ({"pay": None}, "approvers.pay", "to: Input should be a valid string"),
        ({"pya": "staff"}, "approvers.pya", "the tools are: add, echo, pay, whoami"),
        ([("staff", 0)], "approvers", "within"), (["staff", "group:x"], "approvers", "no time limit"),
        (7, "approvers", "to: Input should be a valid string"),
    ]:  # fmt: skip
        with case(given, field, words), refused(field, words):
            agent(approvers=given)


def test_a_spec_says_who_is_asked() -> None:
    assert "approvers" not in agent().spec()
    assert all(not {"approval", "approvers"} & made.keys() for made in agent().spec()["tools"])
    made = ReActAgent(
        "payer", model=Model(), tools=[tool(risk="high", approval="always", approvers="group:tool")(_pay)],
        approvers={"high": "staff"}
    )  # fmt: skip
    said = made.spec()
    assert said["approvers"] == {"high": "staff"}
    assert (said["tools"][0]["approval"], said["tools"][0]["approvers"]) == ("always", "group:tool")
    again = rebuild_agent(said, tools=made.tools, build_model=lambda name, **_: ScriptedModel([], name=name))
    assert again.approval.approvers == made.approval.approvers
    # an orchestrator has approvers too
    child = ReActAgent("child", model=Model())
    options: dict[str, Any] = {"model": Model(), "tools": TOOLS, "sub_agents": [SubAgentConfig(child)]}
    made = OrchestratorAgent("boss", approvers={"handoff_child": "staff"}, **options)
    assert made.spec()["approvers"] == {"handoff_child": "staff"}
    with pytest.raises(InvalidInputError, match=r"approvers\.handoff_other"):
        OrchestratorAgent("boss", approvers={"handoff_other": "staff"}, **options)
    # a specs json has them only where somebody is named
    assert "approvers" not in AgentSpec(model="m").to_json()
    spec = AgentSpec(model="m", tool_names=["pay"], approvers={"pay": ["staff"], "*": [("owner", 60), "staff"]})
    assert spec.to_json()["approvers"] == {"pay": "staff", "*": [{"to": "owner", "within": 60.0}, "staff"]}
    assert validate_spec(spec.to_json()) == spec
    # a spec that names nobody is refused
    for given, field, words in [
        ("finance", "approvers", "approvers: to: 'finance' is no address"),
        ({"pay": "finance"}, "approvers", "approvers.pay: "),
        ({"pya": "staff"}, "approvers.pya", "the tools are: handoff_helper, pay"),
    ]:
        with case(given, field, words):
            spec = {"model": "m", "tool_names": ["pay"], "sub_agents": ["react/helper"], "approvers": given}
            with refused(field, words):
                validate_spec(spec)


def _pay(amount: int) -> None:
    """Pay."""


def test_a_tool_says_when_and_who_is_asked() -> None:
    for approval, risk, covered in [
        ("by_risk", "safe", False), ("by_risk", "high", True), ("always", "safe", True),
        ("never", "critical", False), ("nonsense", "safe", True),
    ]:  # fmt: skip
        with case(approval, risk, covered):
            made = tool(risk=risk)(_pay)
            made.approval = approval
            assert ApprovalGate().covers(made, {"amount": 1}) is covered
    # a tools own policy is checked at the decorator
    for options, field, words in [
        ({"approval": "sometimes"}, "approval", "by_risk, always, never, not 'sometimes'"),
        ({"approval": None}, "approval", "not None"),
        ({"approvers": "finance"}, "a tool's approvers", "'finance' is no address"),
        ({"approvers": {"high": "staff"}}, "a tool's approvers", ""),
    ]:
        with case(options, field, words), refused(field, words):
            tool(**options)(_plain)
    # that of a class is checked with its agent
    for name, value in [("approval", "sometimes"), ("approvers", "finance")]:
        with case(name, value):

            class Pay(Tool):
                risk = Risk.HIGH

            made = Pay()
            made.name = "pay"
            setattr(made, name, value)
            with pytest.raises(InvalidInputError, match="of the tool pay"):
                ReActAgent("payer", model=Model(), tools=[made])


def by_amount(arguments: dict[str, Any]) -> str:
    return "safe" if arguments["amount"] < 100 else "high"


@tool(risk=by_amount)
def pay(to: str, amount: int = 500) -> str:
    """Pay."""
    return f"paid {amount}"


def test_a_rule_computes_the_risk() -> None:
    # it is by the arguments as the tool will get them
    for arguments, risk in [
        ({"to": "ann", "amount": 5}, Risk.SAFE),
        ({"to": "ann", "amount": 100}, Risk.HIGH),
        ({"to": "ann", "amount": "5"}, Risk.SAFE),  # as the tool will understand it
        ({"to": "ann"}, Risk.HIGH),  # by its default
        ({"to": "ann", "amount": "many"}, Risk.CRITICAL),
        ({"amount": 5}, Risk.CRITICAL),
        ({"to": "ann", "amount": 5, "more": 1}, Risk.CRITICAL),
        ({}, Risk.CRITICAL),
    ]:
        assert pay.risk_for(arguments) is risk, arguments
    # a rule that fails or gives nonsense counts as critical
    for rule in [fails, lambda _: None, lambda _: "harmless", lambda _: 0, lambda _: True, lambda _: ["safe"]]:
        with case(rule):
            made = tool(risk=rule)(_plain)
            assert made.risk_for({}) is Risk.CRITICAL
    # what cannot compute a risk is refused
    for risk in [later, Risk, dict]:
        with case(risk), pytest.raises(TypeError, match="a tool's risk must be a string or a sync function"):
            tool(risk=risk)(_plain)
    # a cap that cannot be is named
    for name, bad in [("max_calls", 0), ("max_calls", True), ("max_calls", 1.5), ("max_result_bytes", -1)]:
        with pytest.raises(ValueError, match=f"{name} is a whole number from 1"):
            tool(**{name: bad})(_plain)
    with pytest.raises(ValueError, match="max_result_bytes is"):
        tool(max_result_bytes="1k")(_plain)


def fails(arguments: Any) -> Any:
    raise KeyError("amount")


async def later(arguments: Any) -> str:
    return "safe"


def _plain() -> None:
    """Plain."""


def test_the_rule_is_asked_about_the_call() -> None:
    # a rule cannot change the call
    class Loose(Tool):
        name = "loose"

        def compute_risk(self, arguments: dict[str, Any]) -> str:
            arguments["inner"]["amount"] = 0
            return "safe"

    given = {"inner": {"amount": 500}}
    assert Loose().risk_for(given) is Risk.SAFE
    assert given == {"inner": {"amount": 500}}
    # without a rule it is the tools own
    assert tool(risk="high")(_plain).risk_for({"anything": 1}) is Risk.HIGH
    gate = ApprovalGate()
    assert not gate.covers(pay, {"to": "ann", "amount": 5}) and gate.covers(pay, {"to": "ann", "amount": 500})
    assert gate.covers(pay, {"amount": "5"})
    # where no call is at hand the worst is assumed
    assert (pay.risk, pay.promised_effect) == (Risk.CRITICAL, Effect.AT_MOST_ONCE)
    assert (Toolbox([pay]).by_risk("critical"), Toolbox([pay]).by_risk("safe")) == ([pay], [])
    assert repr(pay) == "<tool pay risk=by arguments>"
    assert tool(risk=by_amount, effect="transactional")(_plain).promised_effect is Effect.TRANSACTIONAL

    agent = ReActAgent("payer", model=ScriptedModel([]), tools=[pay])
    assert [(made["risk"], made["effect"]) for made in agent.spec()["tools"]] == [("by arguments", "at_most_once")]
