"""The chat page. It sends and follows runs by REST and the sockets, as other clients do."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _, gettext_noop
from django.views.decorators.csrf import ensure_csrf_cookie

from ravi_django import access
from ravi_django.kernel import AgentNotFoundError
from ravi_django.models import Session
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.people import links
from ravi_django.ui.access import Page, problem
from ravi_django.users import has, permits

# The texts of the scripts in static/ravi/ui/.
WORDS = [
    *(gettext_noop("Waiting for the answer before it"), gettext_noop("Waiting for a worker"), gettext_noop("Thinking")),
    *(gettext_noop("Waiting"), gettext_noop("Blocked: an operator has to look"), gettext_noop("Done")),
    *(gettext_noop("Failed"), gettext_noop("Stopped"), gettext_noop("Sending"), gettext_noop("Stopping")),
    *(gettext_noop("Not sent: %s Your text is kept."), gettext_noop("Reconnecting… The answer goes on without you.")),
    *(gettext_noop("Stopped."), gettext_noop("Try again"), gettext_noop("There is no such conversation.")),
    *(gettext_noop("Answering"), gettext_noop("Calling %s"), gettext_noop("no cost"), gettext_noop("%s tokens")),
    *(gettext_noop("Untitled conversation"), gettext_noop("Rename…"), gettext_noop("Delete…"), gettext_noop("Title")),
    *(gettext_noop("Save"), gettext_noop("Delete this conversation"), gettext_noop("Keep it")),
    *(gettext_noop("The server cannot be reached."), gettext_noop("The server answered with status %s.")),
    *(gettext_noop("The server refused the request of this page. Reload the page."), gettext_noop("Approval")),
    *(gettext_noop("You are logged out."), gettext_noop("You may not see this run."), gettext_noop("Question")),
    *(gettext_noop("There is no such run."), gettext_noop("May %s be called?"), gettext_noop("A person has decided.")),
    *(
        gettext_noop("Approved"),
        gettext_noop("Approved, with changes"),
        gettext_noop("Rejected"),
        gettext_noop("Skipped"),
    ),
    *(gettext_noop("Answered"), gettext_noop("Refused"), gettext_noop("Decided"), gettext_noop("%s by %s")),
    *(gettext_noop("Nobody answered in time."), gettext_noop("Nobody waits for an answer any more.")),
    *(gettext_noop("Another person decides on a call of your own run."), gettext_noop("Open in the inbox")),
    *(gettext_noop("Answer"), gettext_noop("Skip"), gettext_noop("Reason"), gettext_noop("Approve")),
    *(gettext_noop("Reject"), gettext_noop("Waits for approval by %s."), gettext_noop("Waits for a decision by %s.")),
    *(gettext_noop("Waits for an answer by %s."), gettext_noop("the person who began this conversation")),
    *(gettext_noop("the group %s"), gettext_noop("people with the permission %s"), gettext_noop("staff")),
    *(gettext_noop("Answer of %s"), gettext_noop("running"), gettext_noop("failed"), gettext_noop("Reasoning")),
    *(gettext_noop("Handed over to %s."), gettext_noop("Asked %s.")),
    *(gettext_noop("Copy"), gettext_noop("Copied"), gettext_noop("Format")),
    gettext_noop("A part of the live text was lost. This is the recorded part."),
]


class HomeView(Page):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponseRedirect("ui/chat/")  # below the prefix of this request


@method_decorator(ensure_csrf_cookie, name="dispatch")  # the script sends the cookie's token
class ChatView(Page):
    def get(self, request: HttpRequest, id: UUID | None = None) -> HttpResponseBase:
        user = request.user
        if id is not None and not Session.objects.for_user(user).filter(id=id).exists():
            return problem(request, 404, _("There is no such conversation."))
        is_staff = has(user, "is_superuser") or has(user, "is_staff")
        context = {
            "mount": request.path[: request.path.rindex("ui/chat/")],
            "session": id or "",
            "agents": _agents(user, request.GET.get("agent", "")),
            "inbox": _inbox() if is_staff else "",
            "may_see_dashboard": is_staff and permits(user, "ravi.view_run"),
            "words": {text: _(text) for text in WORDS},
        }
        response = render(request, "ravi/ui/chat.html", context)
        # The page shows texts of models: its browser runs no inline script, and loads nothing from other hosts.
        here = f"'self' {urlsplit(static('')).netloc}".strip()
        sockets = urlsplit(links.socket("runs")).netloc
        response["Content-Security-Policy"] = (
            f"default-src {here}; connect-src 'self' {sockets}; object-src 'none'; base-uri 'none'; "
            "form-action 'self'; frame-ancestors 'none'"
        )
        return response


class NoPageView(Page):
    def get(self, request: HttpRequest) -> HttpResponse:
        return problem(request, 404, _("There is no such page."))


def _agents(user: Any, chosen: str) -> list[dict[str, Any]]:
    """The agents that the user may run, with their starter prompts."""
    found = []
    for address, row in access.agents_seen(user).items():
        try:
            if not access.may_run(user, specs.find(address)):
                continue
        except AgentNotFoundError:
            continue
        prompts = (row.spec or {}).get("starter_prompts", []) if row else []
        name = (row.name if row else "") or address
        found.append({"address": address, "name": name, "prompts": prompts, "chosen": address == chosen})
    return found


def _inbox() -> str:
    try:
        return reverse("admin:ravi_humanrequest_changelist")
    except NoReverseMatch:
        return ""
