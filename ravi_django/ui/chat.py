"""The chat page. It sends and follows runs by REST and the sockets, as other clients do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.csrf import ensure_csrf_cookie

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.models import Agent, Session
from ravi_django.ui.access import Page, inbox_url, problem
from ravi_django.ui.words import script_words
from ravi_django.users import has, permits


class HomeView(Page):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponseRedirect("ui/chat/")  # below the prefix of this request


@method_decorator(ensure_csrf_cookie, name="dispatch")  # the script sends the cookie's token
class ChatView(Page):
    def get(self, request: HttpRequest, id: UUID | None = None) -> HttpResponseBase:
        user = request.user
        if id is not None and not Session.objects.for_user(user).filter(id=id).exists():
            return problem(request, 404, _("There is no such conversation."))
        mount = request.path[: request.path.rindex("ui/chat/")]
        context = context_of(user, mount, session=id, chosen=request.GET.get("agent", ""))
        context["layout"] = "ravi/ui/base.html"
        return render(request, "ravi/ui/chat.html", context)


def context_of(
    user: Any, mount: str, *, session: UUID | None = None, chosen: str = "", only: str = ""
) -> dict[str, Any]:
    """What ravi/ui/chat.html needs beside its layout. `only` is the address of the single agent on offer."""
    is_staff = has(user, "is_superuser") or has(user, "is_staff")
    talks = Session.objects.filter(owner=user, parent_session=None, erasure=None).exclude(agent="")
    chosen = chosen or talks.values_list("agent", flat=True).first() or ""
    return {
        "mount": mount,
        "session": session or "",
        "agents": agents_of(user, chosen, only),
        "inbox": inbox_url() if is_staff else "",
        "is_staff": is_staff,
        "may_see_dashboard": is_staff and permits(user, "ravi.view_run"),
        "on_busy": conf.ON_BUSY,
        "words": script_words(),
    }


class NoPageView(Page):
    def get(self, request: HttpRequest) -> HttpResponse:
        return problem(request, 404, _("There is no such page."))


def agents_of(user: Any, chosen: str = "", only: str = "") -> list[dict[str, Any]]:
    """The agents that the user may run, with their starter prompts. One query."""
    found = []
    for address, row in access.agents_seen(user).items():
        if only not in ("", address) or not access.allows("may_run", user, row or Agent(address=address)):
            continue
        prompts = (row.spec or {}).get("starter_prompts", []) if row else []
        name = (row.name if row else "") or address
        found.append({"address": address, "name": name, "prompts": prompts, "chosen": address == chosen})
    return found
