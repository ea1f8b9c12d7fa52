"""E-mail to the people who may answer: RAVI["REQUEST_EMAIL"]. Switched off, it costs nothing.

After the commit of a request a hint is sent (a Celery task, or a thread without a broker), and the sweep finds requests
without one. Each person gets at most one e-mail a level: the link's row is claimed before the e-mail is sent. If the
process dies in between, that e-mail is lost; the request is still in the inbox. A failed e-mail is retried a few times.
No run waits for an e-mail.

An e-mail has plain text and a link, and no secrets. A site may override `ravi/mail/request.txt` and `.html`.
"""

from __future__ import annotations

import json
import logging
import smtplib
import time
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core import mail as django_mail
from django.core.mail import EmailMultiAlternatives
from django.db import DatabaseError
from django.template.loader import render_to_string
from django.urls import NoReverseMatch
from django.utils import timezone, translation
from django.utils.translation import gettext as _, gettext_lazy

from ravi_django.capabilities.llm.errors import redact
from ravi_django.conf import conf
from ravi_django.kernel.visible import money, visible
from ravi_django.models import HumanRequest, RequestLink
from ravi_django.models.names import word
from ravi_django.runtime.db import clock
from ravi_django.runtime.people import links, rights, site_rules
from ravi_django.runtime.people.top_ups import is_top_up
from ravi_django.runtime.runs import background
from ravi_django.users import name_of

log = logging.getLogger("ravi.mail")

BATCH = 20  # requests of one sweep
SMTP_TIMEOUT_S = 20.0  # without EMAIL_TIMEOUT a silent server would block forever
REST_S = 30.0  # pause of this process after an error of the mail server

_rests_until = 0.0


def on_request(sender: Any, request: HumanRequest, **kwargs: Any) -> None:
    """A receiver of `request_opened` and `request_changed`."""
    if conf.REQUEST_EMAIL:
        hint([request.pk])


def sweep() -> int:
    """Hint the requests that have e-mails to send, at most BATCH. Returns how many."""
    if not conf.REQUEST_EMAIL:
        return 0
    missed = links.unwritten(BATCH)
    if missed:
        hint(missed)
    return len(missed)


def hint(request_ids: list[UUID]) -> None:
    """Send their e-mails in the background. Never raises: the sweep hints again."""
    for request_id in request_ids:
        background.hint("ravi.mail_request", str(request_id))


def send(request_id: UUID | str) -> int:
    """Send the missing e-mails of a pending request to the recipients of its present level. Returns how many were sent.
    Never raises."""
    if not conf.REQUEST_EMAIL or time.monotonic() < _rests_until:
        return 0
    try:
        request = links.find_unwritten(request_id)
        return 0 if request is None else _write(request)
    except (DatabaseError, NoReverseMatch) as error:  # an error of the site: retried until it is fixed
        log.error("request %s: no e-mail: %s", request_id, error, extra={"action": "mail.failed"})
    except Exception:  # mostly in a hook of the site: it must not block other requests
        log.exception("request %s: no e-mail is sent", request_id, extra={"action": "mail.given_up"})
        try:
            links.give_up_writing(request_id)
        except DatabaseError as error:  # the next sweep tries again
            log.error("request %s: %s", request_id, error, extra={"action": "mail.failed"})
    return 0


def _write(request: HumanRequest) -> int:
    found = [user for user in rights.candidates(request.to, request) if address_of(user)]
    users = {user.pk: user for user in found}
    made = links.make_links(request, found, conf.REQUEST_LINK_S)
    sent = 0
    if made:
        url_of(made[0])  # may raise; nothing is claimed yet
        connection = _connection()
        try:
            connection.open()
            for link in made:
                link.user = users[link.user_id]
                sent += _send_one(link, request, connection)
        except OSError as error:  # the next e-mail would fail too
            _rest(error)
            return sent
        finally:
            _close(connection)
    links.mark_written(request, found)
    return sent


def _send_one(link: RequestLink, request: HumanRequest, connection: Any) -> bool:
    if not links.claim_link(link, request):
        return False
    try:
        connection.send_messages([letter_to(link, request)])
    except Exception as error:
        level, what = (logging.WARNING, "retried") if links.link_failed(link) else (logging.ERROR, "given up")
        facts = (link.request_id, link.user_id, what, type(error).__name__, error)
        log.log(level, "request %s: no e-mail to user %s, it is %s: %s: %s", *facts, extra={"action": "mail.failed"})
        if isinstance(error, OSError) and not isinstance(error, smtplib.SMTPRecipientsRefused):
            raise
        return False
    return True


def _connection() -> Any:
    connection = _site_connection()
    if getattr(connection, "timeout", SMTP_TIMEOUT_S) is None:
        connection.timeout = SMTP_TIMEOUT_S
    return connection


def _site_connection() -> Any:
    """The setting MAILERS is new in Django 6.1."""
    mailers = getattr(django_mail, "mailers", None)
    return django_mail.get_connection() if mailers is None else mailers.default


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # the e-mails are sent
        log.warning("the mail server's connection: %s", error, extra={"action": "mail.close"})


def _rest(error: Exception) -> None:
    global _rests_until
    _rests_until = time.monotonic() + REST_S
    facts = (REST_S, type(error).__name__, error)
    log.warning("no e-mail for %g s, the mail server failed: %s: %s", *facts, extra={"action": "mail.server_away"})


MOST_SUBJECT, MOST_TEXT, MOST_ARGUMENTS = 120, 1_500, 600  # characters

_TITLES = {
    HumanRequest.Kind.QUESTION: gettext_lazy("Question"),
    HumanRequest.Kind.INPUT: gettext_lazy("Input needed"),
    HumanRequest.Kind.APPROVAL: gettext_lazy("Approval needed"),
    HumanRequest.Kind.UNCERTAIN: gettext_lazy("Result unknown"),
}


def address_of(user: Any) -> str:
    """The user's e-mail address, or ""."""
    return str(getattr(user, get_user_model().get_email_field_name(), "") or "").strip()


def title_of(request: HumanRequest) -> str:
    """The subject of a request, in one line."""
    if is_top_up(request):
        return _("More budget needed")
    about = request.tool if request.kind in (HumanRequest.Kind.APPROVAL, HumanRequest.Kind.UNCERTAIN) else request.text
    return f"{_TITLES[HumanRequest.Kind(request.kind)]}: {_in_one_line(about)}"


def end_of(request: HumanRequest) -> str:
    """What happens if nobody answers in time."""
    is_denied = request.kind == HumanRequest.Kind.APPROVAL
    return _("the request is denied") if is_denied else _("the agent continues without an answer")


def letter_to(link: RequestLink, request: HumanRequest) -> EmailMultiAlternatives:
    """The e-mail to the link's user, in their language."""
    arguments = "" if request.arguments is None else json.dumps(request.arguments, indent=2, ensure_ascii=False)
    with translation.override(site_rules.language_of(link.user)):
        context = {
            "title": _short(redact(title_of(request)), MOST_SUBJECT),
            "kind": str(request.kind),
            "agent": request.run.agent,
            "text": _short(visible(redact(request.text)), MOST_TEXT),
            "owner": visible(str(request.owner.get_username())) if request.owner else "",
            "cost": word(money(request.run.cost, unknown=request.run.cost_unknown)),
            "tool": visible(request.tool),
            "arguments": _short(visible(redact(arguments)), MOST_ARGUMENTS),
            "risk": word(request.risk),
            "name": visible(name_of(link.user)),
            "expires": _moment(request.expires_at),
            "end": end_of(request),
            "link_expires": _moment(link.expires_at),
            "url": url_of(link),
        }
        letter = EmailMultiAlternatives(
            subject=context["title"],
            body=render_to_string("ravi/mail/request.txt", context),
            to=[address_of(link.user)],
            headers={"Auto-Submitted": "auto-generated"},
        )
        letter.attach_alternative(render_to_string("ravi/mail/request.html", context), "text/html")
    return letter


def url_of(link: RequestLink) -> str:
    """The URL of a link: REQUEST_EMAIL is the site's address. Raises as `links.path_to`."""
    return str(conf.REQUEST_EMAIL).rstrip("/") + links.path_to("decide", token=links.token_of(link))


def _in_one_line(text: str) -> str:
    """Without line breaks, which would begin another header."""
    return "".join(" " if not char.isprintable() else char for char in " ".join(text.split()))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{clock.written(at)} {timezone.localtime(at).tzname()}"
