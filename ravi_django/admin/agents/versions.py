"""The versions of a spec: the list of changes, the page of a version, and restoring it."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext

from ravi_django.admin.base import LiveAdmin, page_of
from ravi_django.agents.spec.spec import AgentSpec
from ravi_django.db import transaction
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Agent, AgentVersion
from ravi_django.models.names import word
from ravi_django.pages import formats
from ravi_django.runs.catalog.specs import save_spec

PAGE = 20
_ORDER = {name: index for index, name in enumerate(AgentSpec.model_fields)}


class VersionPages(LiveAdmin):
    """`<id>/versions/<number>/` shows a version, `…/restore/` restores it."""

    def get_urls(self) -> list[URLPattern]:
        look, restore = map(self.admin_site.admin_view, (self.version_view, self.restore_view))
        route = "<int:object_id>/versions/<int:number>/"
        return [
            path(route, look, name="ravi_agent_version"),
            path(f"{route}restore/", restore, name="ravi_agent_restore"),
            *super().get_urls(),
        ]

    def version_view(self, request: HttpRequest, object_id: int, number: int) -> HttpResponse:
        agent, version = self._version(request, object_id, number)
        if not self.has_view_or_change_permission(request, agent):
            raise PermissionDenied
        before = AgentVersion.objects.filter(agent=agent, number__lt=number).order_by("-number").first()
        current = version.number == agent.version
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Version %(number)s") % {"number": number},
            "subtitle": str(agent),
            "agent": agent,
            "version": version,
            "before": before,
            "changes": changes(before.spec if before else {}, version.spec),
            "to_current": [] if current else changes(agent.spec, version.spec),
            "spec": json.dumps(version.spec, indent=2, ensure_ascii=False),
            "is_current": current,
            "may_restore": not current and self.has_change_permission(request, agent),
            "media": self.media,
        }
        return TemplateResponse(request, "ravi/admin/agent_version.html", context)

    def restore_view(self, request: HttpRequest, object_id: int, number: int) -> HttpResponse:
        """Save the old version's spec as a new version."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        agent, version = self._version(request, object_id, number)
        if not self.has_change_permission(request, agent):
            raise PermissionDenied
        with transaction.atomic(using=router.db_for_write(Agent)):
            agent = Agent.objects.select_for_update().get(pk=agent.pk)
            if request.POST.get("version") == str(agent.version):
                return self._restore(request, agent, version)
        message = gettext("Nothing was changed: somebody saved version %(number)s. Look at it, then try again.")
        self.message_user(request, message % {"number": agent.version}, messages.WARNING)
        return redirect("admin:ravi_agent_version", agent.pk, number)

    def _restore(self, request: HttpRequest, agent: Agent, version: AgentVersion) -> HttpResponse:
        number = version.number
        try:
            saved = save_spec(agent.address, version.spec, by=request.user)
        except InvalidInputError as error:
            message = gettext(
                "Version %(number)s cannot be restored: %(error)s. Fix that, or save the form with changes."
            )
            self.message_user(request, message % {"number": number, "error": error}, messages.ERROR)
            return redirect("admin:ravi_agent_version", agent.pk, number)
        self.log_change(request, agent, f"Restored version {number} as version {saved.version}.")
        message = gettext("Restored version %(number)s as version %(current)s.")
        self.message_user(request, message % {"number": number, "current": saved.version}, messages.SUCCESS)
        return redirect("admin:ravi_agent_change", agent.pk)

    def _version(self, request: HttpRequest, object_id: int, number: int) -> tuple[Agent, AgentVersion]:
        agent = self.get_object(request, str(object_id))
        version = agent and AgentVersion.objects.filter(agent=agent, number=number).select_related("created_by").first()
        if version is None:
            raise Http404(f"there is no version {number} of this agent")
        return agent, version  # type: ignore[return-value]


def version_list(request: HttpRequest, agent: Agent) -> dict[str, Any]:
    """A page of versions, newest first, each with the names of the fields that it changed. At most three queries."""
    rows = AgentVersion.objects.filter(agent=agent).select_related("created_by").order_by("-number")
    page = page_of(request, "versions", rows.count(), PAGE)
    rows_of_page = list(rows[max(0, page["first"] - 1) : page["last"] + 1])  # and the one before, to compare with
    entries = []
    for index, version in enumerate(rows_of_page[:PAGE]):
        before = rows_of_page[index + 1].spec if index + 1 < len(rows_of_page) else None
        names = [_label(name) for name in _changed(before, version.spec)] if before is not None else []
        entries.append({"version": version, "first": before is None, "changed": names})
    return {"versions": entries, "versions_page": page}


def changes(before: Any, after: Any) -> list[dict[str, Any]]:
    """The fields that differ: `name`, and `lines` of their difference."""
    names = _changed(before, after)
    old, new = (spec if isinstance(spec, dict) else {} for spec in (before, after))
    return [{"name": _label(name), "lines": formats.difference(old.get(name), new.get(name))} for name in names]


def _changed(before: Any, after: Any) -> list[str]:
    """The fields that differ."""
    old, new = (spec if isinstance(spec, dict) else {} for spec in (before, after))
    names = sorted(old.keys() | new.keys(), key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
    return [name for name in names if old.get(name) != new.get(name)]


def _label(name: str) -> str:
    return word(name.replace("_", " "))
