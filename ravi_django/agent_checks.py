"""`manage.py check`: the agents and tools in code. Other checks are in `checks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register

from ravi_django.agents.react.approval import ApprovalGate
from ravi_django.kernel import InvalidInputError, Risk, Tool
from ravi_django.runtime.catalog import registry
from ravi_django.runtime.people import site_rules


@register("ravi")
def check_conflicts(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    hint = f"{registry.CONFLICT_FIX}."
    return [Error(f"{fault}. The first one is in use.", hint=hint, id="ravi.E038") for fault in registry.conflicts]


@register("ravi")
def check_tools(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Tools that a model cannot understand, and calls that nobody can approve."""
    hint = "Write a docstring: what the tool does, and when to call it."
    found: list[CheckMessage] = [
        Warning(f"The tool {tool.name} has no description: a model sees its name alone.", hint=hint, id="ravi.W011")
        for tool in registry.known_tools()
        if not tool.description.strip()
    ]
    hint = '@tool(approvers="staff"), approvers= of the agent, or RAVI["ADDRESSEES"] = {"approval": "staff"}.'
    for place, gate, tools in _gates():
        for tool in tools:
            if risks := [risk for risk, to in gate.asked(tool) if to is None and not _site_names(tool, risk)]:
                text = f"{place}: {tool.name} has {risks[-1].value} risk and no approvers: each call is denied."
                found.append(Warning(text, hint=hint, id="ravi.W012"))
    return found


def _gates() -> Iterator[tuple[str, ApprovalGate, list[Tool]]]:
    """By place: who asks for approvals, and the tools."""
    for address, agent in registry._agents.items():
        if isinstance(gate := getattr(agent, "approval", None), ApprovalGate):
            yield address, gate, list(getattr(agent, "tools", ()))
    yield "agents in the database that name no approvers", ApprovalGate(), list(registry._tools.values())


def _site_names(tool: Tool, risk: Risk) -> bool:
    try:
        return site_rules.addressees("approval", tool.name, risk.value) is not None
    except InvalidInputError:  # another check reports it
        return True
