"""Conversion between a spec and the form's values, and the form's notes on tools, agents, models and variables."""

from __future__ import annotations

import os
from typing import Any

from django.utils.html import escape
from django.utils.translation import gettext

from ravi_django.admin.agents.fields import declared, rows_of
from ravi_django.agents.spec.spec import REACT
from ravi_django.kernel import HistoryRetention, Risk
from ravi_django.models import Agent
from ravi_django.runs.catalog.prompt_engine import FILTERS, TAGS
from ravi_django.runs.catalog.prompts import BUILT_IN
from ravi_django.runs.catalog.specs import known_agents

NESTED = {  # parts of a spec whose fields are `<part>_<name>` here
    "budget": ["max_tokens", "max_cost_usd", "max_turns", "deadline_s", "max_agents"],
    "options": ["temperature", "top_p", "max_tokens", "reasoning_effort", "stop", "extra"],
    "window": ["messages", "tokens"],
}
FLAT = ["name", "description", "model", "fallbacks", "system_instructions", "tool_names", "max_iterations", "retention"]
FLAT += ["kind", "output_topic", "source_signal", "follow_topics", "preferences", "every_s", "items_per_generation"]
FLAT += ["approval_required_risk", "approvers", "initial_tool_choice", "starter_prompts", "welcome", "result_schema"]
FLAT += ["public_signals", "client_tools"]


def assemble(data: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The spec of the form's values. Parts of a sub-agent or of a nested part that the form does not show are kept."""
    known = {_address(entry): entry for entry in old.get("sub_agents") or []}
    spec: dict[str, Any] = {name: data[name] for name in FLAT if data.get(name) not in (None, "", [])}
    spec["variables"] = declared(data.get("variables") or [])
    spec["sub_agents"] = [known.get(address, address) for address in data.get("sub_agents") or []]
    for part, names in NESTED.items():
        values = {name: data.get(f"{part}_{name}") for name in names}
        before = old.get(part)
        hidden = {name: before[name] for name in before if name not in names} if isinstance(before, dict) else {}
        if values := {**hidden, **{name: value for name, value in values.items() if value not in (None, "", [], {})}}:
            spec[part] = values
    return spec


def initial_of(spec: dict[str, Any]) -> dict[str, Any]:
    initial = {name: spec[name] for name in FLAT if name in spec}
    initial |= {"variables": rows_of(spec.get("variables")), "sub_agents": addresses_in(spec)}
    initial.setdefault("retention", HistoryRetention.PERMANENT.value)
    initial.setdefault("kind", REACT)
    for part, names in NESTED.items():
        value = spec.get(part)
        values = value if isinstance(value, dict) else {}
        initial |= {f"{part}_{name}": values[name] for name in names if name in values}
    return initial


def _address(entry: Any) -> str:
    return str(entry.get("agent", "")) if isinstance(entry, dict) else str(entry)


def addresses_in(spec: dict[str, Any]) -> list[str]:
    return [_address(entry) for entry in listed_in(spec, "sub_agents")]


def listed_in(spec: dict[str, Any], name: str) -> list[Any]:
    value = spec.get(name)
    return value if isinstance(value, list) else []


def agents_but(agent: Agent) -> dict[str, dict[str, str]]:
    """The other agents, with their names and descriptions."""
    rows = {row.address: row for row in Agent.objects.only("address", "name", "description")}
    agents = {}
    for address in sorted(known_agents() - {agent.address}):
        row = rows.get(address)
        text = " · ".join(filter(None, [row.name, row.description])) if row else ""
        agents[address] = {"label": address, "text": text}
    return agents


def note_of(tool: Any) -> dict[str, str]:
    return {
        "label": tool.name,
        "risk": Risk(tool.risk).value,
        "effect": tool.promised_effect.value.replace("_", " "),
        "text": tool.description,
    }


def model_help() -> str:
    site = os.environ.get("RAVI_MODEL", "").strip()
    here = gettext("This site's RAVI_MODEL is %(model)s.") % {"model": escape(site)} + " " if site else ""
    return here + gettext(
        "A model name of litellm: openai/gpt-4o-mini, anthropic/claude-sonnet-4-5, ollama/llama3.2. Its "
        "API key comes from the environment. The built-in model rehearsal works offline, for trying things "
        "out."
    )


def variables_help() -> str:
    there = "; ".join(f"{name}: {gettext(what)}" for name, what in BUILT_IN.items())
    return gettext(
        'A run passes their values as metadata {"variables": {…}}. Valid JSON (3, true, ["a", "b"]) is '
        "read as JSON, everything else as text. Clear a name to remove its row; save to get more rows. "
        "Always available: %(there)s. <details><summary>Tags and filters</summary>Tags: %(tags)s. Filters: "
        "%(filters)s.</details>"
    ) % {"there": there, "tags": ", ".join(TAGS), "filters": ", ".join(FILTERS)}
