"""Deciding on several approvals at once: of one tool at one risk, after a page that lists each of them.

Each is answered on its own: a request that another person has decided meanwhile keeps that decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import InspectAdmin
from ravi_django.admin.decisions import late_answer_text
from ravi_django.kernel import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import HumanRequest
from ravi_django.pages import formats
from ravi_django.pages.texts import name_of
from ravi_django.people import answers, rights
from ravi_django.people.top_ups import is_top_up

MOST = 200  # at once
_BUTTONS = {"approve": _("Approve"), "deny": _("Reject")}
_TITLES = {"approve": _("Approve %(count)s calls of %(tool)s?"), "deny": _("Reject %(count)s calls of %(tool)s?")}
_ALL = {"approve": _("Approve all %(count)s"), "deny": _("Reject all %(count)s")}
_DONE = {
    "approve": _("Approved: %(done)s of %(count)s calls of %(tool)s."),
    "deny": _("Rejected: %(done)s of %(count)s calls of %(tool)s."),
}


class BulkDecisions(InspectAdmin):
    """Mixed into the inbox: two actions, which lead to `bulk/`."""

    @admin.action(description=_("Approve selected"), permissions=["answer"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[HumanRequest]) -> HttpResponse | None:
        return self._confirm(request, "approve")

    @admin.action(description=_("Reject selected"), permissions=["answer"])
    def deny_selected(self, request: HttpRequest, queryset: QuerySet[HumanRequest]) -> HttpResponse | None:
        return self._confirm(request, "deny")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.bulk_view)
        return [path("bulk/", view, name="ravi_humanrequest_bulk"), *super().get_urls()]

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        """POST `action` and `seen`: each request's id and the version that was shown."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        action, seen = request.POST.get("action", ""), _seen(request.POST.getlist("seen"))
        rows = self._rows(request, list(seen))
        fault = _mixed(rows)
        if action not in _BUTTONS or not seen:
            fault = gettext("Nothing was decided. Select requests, then approve or reject them.")
        elif len(rows) != len(seen):
            fault = gettext("Nothing was decided. Some of these requests do not exist, or you may not see them.")
        if fault:
            self.message_user(request, fault, messages.ERROR)
        else:
            self._answer_each(request, action, rows, seen)
        return redirect("admin:ravi_humanrequest_changelist")

    def _confirm(self, request: HttpRequest, action: str) -> HttpResponse | None:
        if request.POST.get("select_across") == "1":
            self.message_user(
                request,
                gettext("Decide one page at a time, on what you have seen."),
                messages.ERROR,
            )
            return None
        rows = self._rows(request, request.POST.getlist(ACTION_CHECKBOX_NAME))
        if fault := _mixed(rows) or _closed(rows) or _of_others(request.user, rows):
            self.message_user(request, fault, messages.ERROR)
            return None
        values = {"count": len(rows), "tool": formats.visible(rows[0].tool)}
        context = {
            **self.admin_site.each_context(request),
            "title": _TITLES[action] % values,
            "opts": self.opts,
            "media": self.media,
            "action": action,
            "label": _ALL[action] % values if len(rows) > 1 else _BUTTONS[action],
            "tool": rows[0].tool,
            "risk": rows[0].risk,
            "rows": [(row, formats.pretty(row.arguments, None)) for row in rows],
            "they_differ": len({row.arguments_hash for row in rows}) > 1,
        }
        return TemplateResponse(request, "ravi/admin/request_bulk.html", context)

    def _rows(self, request: HttpRequest, keys: Sequence[str]) -> list[HumanRequest]:
        """Those that the user may see, oldest first."""
        known = [key for key in keys[: MOST + 1] if _is_id(key)]
        return list(self.get_queryset(request).filter(pk__in=known).order_by("id"))

    def _answer_each(self, request: HttpRequest, action: str, rows: list[HumanRequest], seen: dict[str, int]) -> None:
        reason = request.POST.get("reason", "").replace("\r\n", "\n")
        done = 0
        for row in rows:
            try:
                answers.answer(row.pk, action, reason=reason, by=request.user, version=seen[str(row.pk)])
                done += 1
            except ConflictError:
                self.message_user(request, f"{_name(row)}: {late_answer_text(answers.find(row.pk))}", "WARNING")
            except (ForbiddenError, NotFoundError):
                self.message_user(request, gettext("%(name)s: you may not answer it.") % {"name": _name(row)}, "ERROR")
            except InvalidInputError as error:
                self.message_user(request, f"{_name(row)}: {formats.visible(str(error))}", "ERROR")
        if done:
            values = {"done": done, "count": len(rows), "tool": formats.visible(rows[0].tool)}
            self.message_user(request, _DONE[action] % values, messages.SUCCESS)


def _name(row: HumanRequest) -> str:
    return f"{name_of(row)} …{str(row.pk)[-8:]}"


def _mixed(rows: list[HumanRequest]) -> str:
    """Why these cannot be decided together; empty when they can."""
    if not rows:
        return gettext("These requests no longer exist.")
    if len(rows) > MOST:
        return gettext("Select at most %(most)s requests.") % {"most": MOST}
    if any(row.kind != HumanRequest.Kind.APPROVAL or is_top_up(row) for row in rows):
        return gettext("Only approvals of tool calls can be decided together. Open the others one by one.")
    if len({row.tool for row in rows}) > 1:
        return gettext("These calls are of different tools. Select calls of one tool with the same risk.")
    if len({row.risk for row in rows}) > 1:
        return gettext("These calls have different risks. Select calls of one tool with the same risk.")
    return ""


def _closed(rows: list[HumanRequest]) -> str:
    closed = [row for row in rows if row.status != HumanRequest.Status.PENDING]
    if not closed:
        return ""
    message = gettext("%(count)s of these are already %(status)s. Select only pending requests.")
    return message % {"count": len(closed), "status": formats.word(closed[0].status)}


def _of_others(user: Any, rows: list[HumanRequest]) -> str:
    others = len(rows) - len(rights.open_among(user, rows))
    message = gettext("%(count)s of these are assigned to others. You can only read them.")
    return message % {"count": others} if others else ""


def _seen(values: list[str]) -> dict[str, int]:
    versions = {}
    for value in values[: MOST + 1]:
        key, _, version = value.partition(":")
        if _is_id(key) and version.isascii() and version.isdigit() and len(version) < 10:
            versions[key] = int(version)
    return versions


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
