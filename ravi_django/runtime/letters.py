"""One e-mail about one request: plain words and a link, no secrets. `ravi/mail/request.txt` and `.html` are a site's to
override."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ravi_django.capabilities.llm.redaction import redact
from ravi_django.conf import conf
from ravi_django.kernel.visible import money, visible
from ravi_django.models import HumanRequest, RequestLink
from ravi_django.models.names import word
from ravi_django.runtime import clock, links, site_rules
from ravi_django.runtime.addresses import name_of
from ravi_django.runtime.topups import is_top_up

MOST_SUBJECT, MOST_TEXT, MOST_ARGUMENTS = 120, 1_500, 600  # characters

_TITLES = {
    HumanRequest.Kind.QUESTION: gettext_lazy("Question"),
    HumanRequest.Kind.INPUT: gettext_lazy("Input wanted"),
    HumanRequest.Kind.APPROVAL: gettext_lazy("Approval wanted"),
    HumanRequest.Kind.UNCERTAIN: gettext_lazy("What became of it?"),
}


def address_of(user: Any) -> str:
    """Their e-mail address; empty without one."""
    return str(getattr(user, get_user_model().get_email_field_name(), "") or "").strip()


def title_of(request: HumanRequest) -> str:
    """What is wanted, in one line."""
    if is_top_up(request):
        return _("More budget wanted")
    about = request.tool if request.kind in (HumanRequest.Kind.APPROVAL, HumanRequest.Kind.UNCERTAIN) else request.text
    return f"{_TITLES[HumanRequest.Kind(request.kind)]}: {_in_one_line(about)}"


def end_of(request: HumanRequest) -> str:
    """What comes of it when nobody answers until then."""
    return _("it is denied") if request.kind == HumanRequest.Kind.APPROVAL else _("the agent goes on without an answer")


def letter_to(link: RequestLink, request: HumanRequest) -> EmailMultiAlternatives:
    """To the link's user, in their language."""
    with translation.override(site_rules.language_of(link.user)):
        return _letter_to(link, request)


def _letter_to(link: RequestLink, request: HumanRequest) -> EmailMultiAlternatives:
    said = {
        "title": _short(redact(title_of(request)), MOST_SUBJECT),
        "kind": str(request.kind),
        "agent": request.run.agent,
        "text": _short(visible(redact(request.text)), MOST_TEXT),
        "owner": visible(str(request.owner.get_username())) if request.owner else "",
        "cost": word(money(request.run.cost, unknown=request.run.cost_unknown)),
        "tool": visible(request.tool),
        "arguments": _short(visible(redact(_pretty(request.arguments))), MOST_ARGUMENTS),
        "risk": word(request.risk),
        "name": visible(name_of(link.user)),
        "expires": _moment(request.expires_at),
        "end": end_of(request),
        "link_expires": _moment(link.expires_at),
        "url": url_of(link),
    }
    letter = EmailMultiAlternatives(
        subject=said["title"],
        body=render_to_string("ravi/mail/request.txt", said),
        to=[address_of(link.user)],
        headers={"Auto-Submitted": "auto-generated"},
    )
    letter.attach_alternative(render_to_string("ravi/mail/request.html", said), "text/html")
    return letter


def url_of(link: RequestLink) -> str:
    """Below the site's address, which a worker cannot know. Raises what `links.path_to` does."""
    return str(conf.REQUEST_EMAIL).rstrip("/") + links.path_to("decide", token=links.token_of(link))


def _pretty(arguments: Any) -> str:
    return "" if arguments is None else json.dumps(arguments, indent=2, ensure_ascii=False)


def _in_one_line(text: str) -> str:
    """No line break of any kind: in a header it would begin another one."""
    return "".join(" " if not char.isprintable() else char for char in " ".join(text.split()))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{clock.written(at)} {timezone.localtime(at).tzname()}"
