"""The instructions and tools that the form's values would give an agent. Calls no model and writes nothing."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

from ravi_django.admin.agents.fields import declared, samples
from ravi_django.admin.agents.form import AgentForm
from ravi_django.agents.memory.compaction.tokens import estimate
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.kernel import AgentId, ChatMessage, InvalidInputError, Role
from ravi_django.pages import show
from ravi_django.runtime.catalog.prompts import PromptTemplate, facts_of

SAMPLE_SESSION = "01890000-0000-7000-8000-000000000000"


def preview_of(form: AgentForm, user: Any) -> dict[str, Any]:
    """For a checked form, valid or not: `text` or `error`, `tools`, and an estimate of the tokens."""
    text, error = "", ""
    try:
        if "variables" in form.errors:
            raise InvalidInputError(gettext("fix the error in the variables first"))
        text = _instructions(form, user)
    except InvalidInputError as fault:
        error = str(fault)
    tools = [_shown(tool) for tool in _tools(form)]
    return {
        "valid": form.valid,
        "text": text,
        "error": error,
        "tools": tools,
        "text_tokens": _tokens(text),
        "tool_tokens": sum(_tokens(tool["schema"]) + _tokens(tool["description"]) for tool in tools),
    }


def _instructions(form: AgentForm, user: Any) -> str:
    data = form.cleaned_data
    rows = data.get("variables") or []
    address = form.instance.address or data.get("address") or ""
    name = data.get("name") or (AgentId.parse(address).key if address else "")
    return PromptTemplate(form.text, declared(rows)).render(
        samples(rows),
        agent={"name": name, "address": address},
        user=facts_of(user),
        today=timezone.localdate().isoformat(),
        session=SAMPLE_SESSION,
    )


def _tools(form: AgentForm) -> list[Any]:
    named = [form.tools[name] for name in form.cleaned_data.get("tool_names") or [] if name in form.tools]
    if form.spec is not None:
        entries = [(sub.agent, sub.description, sub.timeout) for sub in form.spec.sub_agents]
    else:
        entries = [(address, "", 120.0) for address in form.cleaned_data.get("sub_agents") or []]
    return [*named, *(AgentTool(*entry) for entry in entries)]


def _shown(tool: Any) -> dict[str, Any]:
    spec = tool.spec
    schema = show.pretty(spec.parameters, None) or {"text": ""}
    return {"name": spec.name, "description": spec.description, "schema": schema["text"]}


def _tokens(text: str) -> int:
    return estimate(ChatMessage.of(Role.SYSTEM, text)) if text else 0
