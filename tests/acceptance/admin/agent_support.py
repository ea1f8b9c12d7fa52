"""What the tests of the agents' form share."""

from __future__ import annotations

import html
import re
from typing import Any

from ravi_django.models import Agent

SPEC: dict[str, Any] = {
    "model": "rehearsal",
    "system_instructions": "You help {{ company }}. Be {{ tone }}.",
    "variables": {"company": {"required": True, "description": "whose shop"}, "tone": {"default": "kind"}},
    "tool_names": ["calculator"],
    "name": "Orders",
}
EVERYTHING: dict[str, Any] = {
    **SPEC,
    "description": "Knows all orders.\nAnd more.",
    "variables": {
        "company": {"required": True, "description": "whose shop"},
        "tone": {"default": "kind"},
        "limit": {"default": 3},
        "rules": {"default": ["a", {"b": 1}]},
        "digits": {"default": "3"},
        "code": {"default": "007"},
    },
    "fallbacks": ["openai/gpt-4o-mini", "ollama/llama3.2"],
    "tool_names": ["calculator", "current_time"],
    "public_signals": ["parcel_posted"],
    "sub_agents": [{"agent": "react/assistant", "description": "for the rest", "timeout": 30.0}],
    "max_iterations": 4,
    "budget": {"max_tokens": 1000, "max_cost_usd": 0.5, "max_turns": 7, "deadline_s": 60.0, "max_agents": 3},
    "retention": "run",
    "approval_required_risk": "safe",
    "client_tools": True,
    "approvers": {"calculator": [{"to": "owner", "within": 60.0}, "staff"], "*": "staff"},
    "starter_prompts": ["Where is my order?", "Cancel it."],
    "welcome": "Hello!",
    "initial_tool_choice": "calculator",
    "options": {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 100,
        "stop": ["END"],
        "reasoning_effort": "low",
        "extra": {"seed": 7},
    },
    "window": {"messages": 20, "tokens": 4000},
    "result_schema": {"type": "object", "properties": {"answer": {"type": "string"}}},
}


NEWS: dict[str, Any] = {
    "model": "rehearsal",
    "kind": "information",
    "output_topic": "news/tech",
    "source_signal": "something_new",
    "items_per_generation": 7,
}
INFORMATION: dict[str, Any] = {"kind": "information", "tool_names": []}
FEED: dict[str, Any] = {
    "kind": "personal_feed",
    "follow_topics": ["news/tech", "news/art"],
    "preferences": "cats,\nnot football",
    "every_s": 60,
}
FORM: dict[str, Any] = {
    "address": "support/orders",
    "name": "Orders",
    "enabled": "on",
    "model": "rehearsal",
    "system_instructions": "You help with orders.",
    "tool_names": ["calculator"],
    "retention": "permanent",
    "max_iterations": "10",
    "variables-0-name": "",
}


def add(client: Any, **fields: Any) -> Any:
    return client.post("/admin/ravi/agent/add/", {**FORM, **fields})


def place(agent: Agent) -> str:
    return f"/admin/ravi/agent/{agent.pk}/"


def form_of(client: Any, agent: Agent) -> dict[str, Any]:
    """What a browser would send back if nobody touched the form."""
    response = client.get(f"{place(agent)}change/")
    assert response.status_code == 200
    found: dict[str, Any] = {}
    form = response.context["adminform"].form
    page = response.content.decode()
    for name in re.findall(r'<(?:input|textarea|select)[^>]* name="([^"]+)"', page):
        if name.startswith("variables-") or name in form.fields:
            found[name] = _value(page, name)
    return {name: value for name, value in found.items() if value not in (None, [])}


def _value(page: str, name: str) -> Any:
    quoted = re.escape(name)
    if area := re.search(rf'<textarea[^>]* name="{quoted}"[^>]*>\n?(.*?)</textarea>', page, re.S):
        return html.unescape(area[1])
    if select := re.search(rf'<select[^>]* name="{quoted}".*?</select>', page, re.S):
        chosen = re.search(r'value="([^"]*)"\s+selected', select[0])
        return chosen[1] if chosen else ""
    inputs = re.findall(rf'<input[^>]* name="{quoted}"[^>]*>', page)
    if 'type="checkbox"' in inputs[0]:
        values = [re.search(r'value="([^"]*)"', tag) for tag in inputs if " checked" in tag]
        return [html.unescape(value[1]) if value else "on" for value in values]
    value = re.search(r'value="([^"]*)"', inputs[0])
    return html.unescape(value[1]) if value else ""


def faults(response: Any) -> dict[str, str]:
    """The form's errors by field; `__all__` for those of none."""
    assert response.status_code == 200, response
    errors = response.context["adminform"].form.errors
    return {name: " ".join(words) for name, words in errors.items()}
