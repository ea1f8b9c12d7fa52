"""The chat, as a page and as a panel in other pages. It sends and follows runs as other clients do.

The page loads the panel when it is opened. `templatetags/ravi.py` has the panel's tags.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import NoReverseMatch
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.csrf import ensure_csrf_cookie

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.kernel import AgentNotFoundError
from ravi_django.kernel.visible import hides
from ravi_django.models import Agent, Session
from ravi_django.people import mail
from ravi_django.runs.catalog import specs
from ravi_django.ui.login import Page, admin_list, login_url, problem
from ravi_django.ui.texts import script_texts
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
        context = context_of(request, mount, session=id, chosen=request.GET.get("agent", ""))
        context["layout"] = "ravi/ui/base.html"
        return render(request, "ravi/ui/chat.html", context)


def context_of(
    request: HttpRequest, mount: str, *, session: UUID | None = None, chosen: str = "", only: str = ""
) -> dict[str, Any]:
    """What ravi/ui/chat.html needs beside its layout. `only` is the address of the single agent on offer."""
    user: Any = request.user
    is_staff = has(user, "is_superuser") or has(user, "is_staff")
    talks = Session.objects.filter(owner=user, parent_session=None, erasure=None).exclude(agent="")
    chosen = chosen or talks.order_by("-updated_at").values_list("agent", flat=True).first() or ""
    return {
        "mount": mount,
        "session": session or "",
        "agents": agents_of(user, chosen, only),
        "inbox": admin_list("humanrequest") if is_staff else "",
        "is_staff": is_staff,
        "polled": _why_polled(request),
        "sees_all": has(user, "is_superuser"),
        "may_see_dashboard": is_staff and permits(user, "ravi.view_run"),
        "on_busy": conf.ON_BUSY,
        "words": script_texts(),
    }


def _why_polled(request: HttpRequest) -> str:
    """What staff read where no socket opens. Nothing on a developer's WSGI server, which cannot have one."""
    if isinstance(request, ASGIRequest):
        return _(
            "No websocket answers, so text arrives in pieces. Route ravi_django.routing.websocket_urlpatterns in the "
            "site's asgi.py, and install a websocket library for the server: see the page Deploy of the documentation."
        )
    return "" if settings.DEBUG else _("This site has no ASGI process for live text, so it arrives in pieces.")


class NoPageView(Page):
    def get(self, request: HttpRequest) -> HttpResponse:
        return problem(request, 404, _("There is no such page."))


def agents_of(user: Any, chosen: str = "", only: str = "") -> list[dict[str, Any]]:
    """The agents that the user may run, with their starter prompts. One query."""
    agents = []
    for address, row in access.agents_seen(user).items():
        if only not in ("", address) or not access.allows("may_run", user, row or Agent(address=address)):
            continue
        prompts = (row.spec or {}).get("starter_prompts", []) if row else []
        name = (row.name if row else "") or address
        agents.append({"address": address, "name": name, "prompts": prompts, "chosen": address == chosen})
    return agents


MOST_FILTERS = 20
MOST_CHARACTERS = 100  # of a value: a link to the page may have any text in it


class PanelView(Page):
    """The chat for an opened panel."""

    def get(self, request: HttpRequest) -> HttpResponse:
        mount = request.path.removesuffix("ui/panel/")
        context = context_of(request, mount, only=request.GET.get("agent", ""))
        more = {"layout": "ravi/ui/part.html", "is_panel": True}
        return render(request, "ravi/ui/chat.html", {**context, **more})


def chat_panel(request: HttpRequest | None, agent: str = "") -> SafeString:
    """The chat with one agent, or with all that the user may run; a link to the login for an anonymous visitor."""
    user = getattr(request, "user", None)
    if request is None or user is None:
        return _why_empty("the template has no request with a user: render it with request")
    if not user.is_authenticated:
        address = f"{login_url()}?{urlencode({'next': request.get_full_path()})}"
        return format_html('<p class="ravi-login"><a href="{}">{}</a></p>', address, _("Log in to chat"))
    return _panel(request, agent, "site")


def admin_panel(context: Any, agent: str = "") -> SafeString:
    """As `chat_panel`, for active staff. A message tells the agent which page of the admin it was sent from."""
    request = context.get("request")
    user = getattr(request, "user", None)
    if user is None or not (user.is_active and has(user, "is_staff")):
        return SafeString()
    return _panel(request, agent, "admin", _page_json(context, request))


def _panel(request: Any, agent: str, where: str, page_json: dict[str, Any] | None = None) -> SafeString:
    if getattr(request, "ravi_panel", False):  # one button a page is enough
        return SafeString()
    agents = agents_of(request.user, only=agent)
    if not agents:
        try:
            specs.find_or_list(agent)
            why = f"{request.user} may not run {agent}: register(agent, access=…), or the permission ravi.run_agent"
        except AgentNotFoundError as error:
            why = str(error) if agent else "this user may run no agent: register(agent, access=…)"
        return _why_empty(why)
    mount = mail.path_to("run-list").removesuffix("runs/")
    chat = f"{mount}ui/panel/?{urlencode({'agent': agent})}"
    try:
        home = mail.path_to("chat")
    except NoReverseMatch:  # the site has no pages
        home = ""
    request.ravi_panel = True
    context = {"mount": mount, "chat": chat, "title": agents[0]["name"], "home": home}
    return render_to_string("ravi/ui/panel.html", {**context, "place": page_json, "kept": f"{where}.{agent}"}, request)


def _why_empty(why: str) -> SafeString:
    """Nothing is shown. With DEBUG a comment in the page says why."""
    return format_html("<!-- ravi_chat: {} -->", why) if settings.DEBUG else SafeString()


def _page_json(context: Any, request: Any) -> dict[str, Any] | None:
    """The model of the page, with the row or the filters that the list has accepted, and the same as a text."""
    opts = context.get("opts")
    if opts is None:
        return None
    page: dict[str, Any] = {"model": opts.label_lower}
    row, changelist = context.get("original"), context.get("cl")
    label = str(opts.verbose_name_plural if row is None else opts.verbose_name)
    if row is not None and _is_plain(pk := str(row.pk)):
        page["pk"] = pk
        label += f" {pk}"
    elif row is None and changelist is not None:
        accepted = changelist.get_filters_params(changelist.params).items()  # the list refuses a page with others
        plain = [(name, str(value)) for name, value in accepted if _is_plain(name) and _is_plain(str(value))]
        page["filters"] = dict(plain[:MOST_FILTERS])
        label += "".join(f", {name}={value}" for name, value in page["filters"].items())
    return {"json": json.dumps({"page": page}), "label": label}


def _is_plain(text: str) -> bool:
    """Whether the chat can show all of it in a line."""
    return len(text) <= MOST_CHARACTERS and "\n" not in text and not hides(text)
