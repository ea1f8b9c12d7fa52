"""The agents that the site knows. What code says of itself is read-only; an operator can switch an agent off."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ravi_django.admin import show
from ravi_django.models import Agent
from ravi_django.runtime.registry import known_addresses


@admin.register(Agent)
class AgentAdmin(admin.ModelAdmin):
    list_display = ["address", "shown_name", "model_name", "tools", "source", "enabled", "loaded"]
    list_filter = ["source", "enabled"]
    search_fields = ["address", "name"]
    show_full_result_count = False
    fields = [
        "address",
        "shown_name",
        "description",
        "source",
        "enabled",
        "loaded",
        "instructions",
        "tool_list",
        "whole_spec",
    ]
    readonly_fields = [field for field in fields if field != "enabled"]

    class Media:
        css = {"all": ["ravi/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="name")
    def shown_name(self, agent: Agent) -> str:
        return agent.name or show.NONE

    @admin.display(description="model")
    def model_name(self, agent: Agent) -> str:
        return str(agent.spec.get("model") or show.NONE)

    @admin.display(description="tools")
    def tools(self, agent: Agent) -> str:
        return ", ".join(str(tool.get("name")) for tool in _tools(agent)) or show.NONE

    @admin.display(description="loaded here", boolean=True)
    def loaded(self, agent: Agent) -> bool:
        """Whether this web process has the agent's code; submitting needs it."""
        return agent.address in known_addresses()

    @admin.display(description="instructions")
    def instructions(self, agent: Agent) -> SafeString | str:
        text = agent.spec.get("system_instructions")
        return format_html('<pre class="ravi-pre">{}</pre>', text) if text else show.NONE

    @admin.display(description="tools")
    def tool_list(self, agent: Agent) -> SafeString | str:
        rows = [
            (tool.get("name"), tool.get("risk", "safe"), tool.get("effect", ""), tool.get("description", ""))
            for tool in _tools(agent)
        ]
        return format_html_join("", _TOOL, rows) or show.NONE

    @admin.display(description="specification")
    def whole_spec(self, agent: Agent) -> SafeString:
        shown = show.pretty(agent.spec, None) or {"text": "{}"}
        return format_html('<details><summary>JSON</summary><pre class="ravi-pre">{}</pre></details>', shown["text"])


_TOOL = '<div class="ravi-agent-tool"><strong>{}</strong> <span class="ravi-quiet">{} · {}</span><br>{}</div>'


def _tools(agent: Agent) -> list[dict[str, Any]]:
    tools = agent.spec.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
