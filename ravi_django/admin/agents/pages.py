"""The agents of the site. An agent in code is read-only except for `enabled`; an agent in the database is edited."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.agents.fields import declared, samples
from ravi_django.admin.agents.form import FIELDSETS, AgentForm
from ravi_django.admin.agents.versions import VersionPages, version_list
from ravi_django.admin.base import LiveAdmin, column
from ravi_django.agents.memory.compaction.tokens import estimate
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.kernel import AgentId, ChatMessage, InvalidInputError, Role
from ravi_django.models import Agent, Run
from ravi_django.pages import formats
from ravi_django.runs.catalog.prompts import PromptTemplate, facts_of
from ravi_django.runs.catalog.registry import known_addresses
from ravi_django.runs.catalog.specs import save_spec

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
    tools = [_tool_as_json(tool) for tool in _tools_of_form(form)]
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


def _tools_of_form(form: AgentForm) -> list[Any]:
    named = [form.tools[name] for name in form.cleaned_data.get("tool_names") or [] if name in form.tools]
    if form.spec is not None:
        entries = [(sub.agent, sub.description, sub.timeout) for sub in form.spec.sub_agents]
    else:
        entries = [(address, "", 120.0) for address in form.cleaned_data.get("sub_agents") or []]
    return [*named, *(AgentTool(*entry) for entry in entries)]


def _tool_as_json(tool: Any) -> dict[str, Any]:
    spec = tool.spec
    schema = formats.pretty(spec.parameters, None) or {"text": ""}
    return {"name": spec.name, "description": spec.description, "schema": schema["text"]}


def _tokens(text: str) -> int:
    return estimate(ChatMessage.of(Role.SYSTEM, text)) if text else 0


CODE_FIELDS = ["address", "name_text", "description", "source", "owner_text", "enabled", "loaded"]
CODE_FIELDS += ["instructions", "tool_list", "whole_spec"]


@admin.register(Agent)
class AgentAdmin(VersionPages, LiveAdmin):
    """An agent made here is a row with a spec. It runs without code. Each save that changes it creates a version."""

    tenant = None
    change_form_template = "ravi/admin/agent.html"
    list_display = ["address", "name_text", "model_name", "tools", "source", "owner_text", "enabled", "loaded"]
    list_select_related = ["owner"]
    list_filter = ["source", "enabled"]
    search_fields = ["address", "name"]
    show_full_result_count = False

    class Media:
        css = {"all": ["ravi/admin.css", "ravi/agent.css"]}

    def get_fieldsets(self, request: HttpRequest, obj: Agent | None = None) -> Any:
        if _is_code(obj):
            return [(None, {"fields": CODE_FIELDS})]
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": [*CODE_FIELDS, "version"]})]
        if obj is None:
            return FIELDSETS
        return [(None, {"fields": [*FIELDSETS[0][1]["fields"], "owner_text"]}), *FIELDSETS[1:]]

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[str]:
        if _is_code(obj):
            return [field for field in CODE_FIELDS if field != "enabled"]
        return [] if obj is None else ["address", "owner_text"]

    def get_form(self, request: HttpRequest, obj: Agent | None = None, change: bool = False, **options: Any) -> Any:
        if obj is None or (not _is_code(obj) and self.has_change_permission(request, obj)):
            options["form"] = AgentForm
        return super().get_form(request, obj, change=change, **options)

    def save_model(self, request: HttpRequest, obj: Agent, form: Any, change: bool) -> None:
        if _is_code(obj):
            super().save_model(request, obj, form, change)
            return
        saved = save_spec(
            obj.address,
            form.spec,
            by=request.user,
            enabled=form.cleaned_data["enabled"],
            access=form.cleaned_data["access"],
            oldest_version=form.cleaned_data["oldest_version"],
        )
        obj.pk = saved.pk
        obj._state.adding = False
        obj.refresh_from_db()

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Agent | None = None, **options: Any
    ) -> HttpResponse:
        form = context["adminform"].form
        if isinstance(form, AgentForm):
            context["show_preview"] = True
            if form.previewing:
                context["preview"] = preview_of(form, request.user)
        if obj is not None and not _is_code(obj):
            context |= version_list(request, obj)
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    def has_delete_permission(self, request: HttpRequest, obj: Agent | None = None) -> bool:
        """One at a time, and never an agent in code."""
        return obj is not None and not _is_code(obj) and super().has_delete_permission(request, obj)

    def delete_view(self, request: HttpRequest, object_id: str, *args: Any, **options: Any) -> HttpResponse:
        obj = self.get_object(request, object_id)
        if obj is not None and not self.has_delete_permission(request, obj):
            raise PermissionDenied
        if obj is not None and (why := _deletion_refusal(obj)):
            message = gettext("%(agent)s was not deleted: %(why)s Disable it instead.") % {"agent": obj, "why": why}
            self.message_user(request, message, messages.ERROR)
            return redirect("admin:ravi_agent_change", obj.pk)
        return super().delete_view(request, object_id, *args, **options)

    name_text = column(_("name"), lambda agent: agent.name or formats.NONE)
    owner_text = column(_("owner"), lambda agent: formats.visible(str(agent.owner or formats.NONE)))
    model_name = column(_("model"), lambda agent: str(agent.spec.get("model") or formats.NONE))
    tools = column(_("tools"), lambda agent: ", ".join(str(tool.get("name")) for tool in _tools(agent)) or formats.NONE)
    # Submitting to an agent in code needs that code in this process.
    loaded = column(
        _("available here"), lambda agent: not _is_code(agent) or agent.address in known_addresses(), boolean=True
    )

    @admin.display(description=_("instructions"))
    def instructions(self, agent: Agent) -> SafeString | str:
        text = agent.spec.get("system_instructions")
        return format_html('<pre class="ravi-pre">{}</pre>', text) if text else formats.NONE

    @admin.display(description=_("tools"))
    def tool_list(self, agent: Agent) -> SafeString | str:
        rows = [
            (
                tool.get("name"),
                formats.word(tool.get("risk", "safe")),
                tool.get("effect", ""),
                tool.get("description", ""),
            )
            for tool in _tools(agent)
        ]
        return format_html_join("", _TOOL, rows) or formats.NONE

    @admin.display(description=_("specification"))
    def whole_spec(self, agent: Agent) -> SafeString:
        spec = formats.pretty(agent.spec, None) or {"text": "{}"}
        return format_html('<details><summary>JSON</summary><pre class="ravi-pre">{}</pre></details>', spec["text"])


_TOOL = '<div class="ravi-agent-tool"><strong>{}</strong> <span class="ravi-quiet">{} · {}</span><br>{}</div>'


def _is_code(agent: Agent | None) -> bool:
    return agent is not None and agent.source == Agent.Source.CODE and agent.pk is not None


def _tools(agent: Agent) -> list[dict[str, Any]]:
    """The tools of a spec: described for an agent in code, only names for an agent in the database."""
    tools = agent.spec.get("tools")
    if isinstance(tools, list):
        return [tool for tool in tools if isinstance(tool, dict)]
    names = agent.spec.get("tool_names")
    return [{"name": name} for name in names] if isinstance(names, list) else []


def _deletion_refusal(agent: Agent) -> str:
    if Run.objects.filter(agent=agent.address).exists():
        return gettext("it has runs.")
    others = Agent.objects.filter(source=Agent.Source.ADMIN).exclude(pk=agent.pk).values_list("address", "spec")
    users = [address for address, spec in others if agent.address in _sub_agents(spec)]
    return gettext("%(agents)s can hand tasks to it.") % {"agents": ", ".join(users)} if users else ""


def _sub_agents(spec: Any) -> list[str]:
    entries = spec.get("sub_agents") if isinstance(spec, dict) else None
    return [str(entry.get("agent") if isinstance(entry, dict) else entry) for entry in entries or []]
