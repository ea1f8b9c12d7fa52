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
