"""E-mail to the people who may answer: RAVI["REQUEST_EMAIL"]. Switched off, it costs nothing.

After the commit of a request a hint is sent (a Celery task, or a thread without a broker), and the sweep finds requests
without one. Each person gets at most one e-mail a level: it is claimed in the request's row before it is sent. If the
process dies in between, that e-mail is lost; the request is still in the inbox. A failed e-mail is retried a few times.
No run waits for an e-mail.

An e-mail has plain text and a link, and no secrets. A site may override `ravi/mail/request.txt` and `.html`.
"""

from __future__ import annotations

import json
import logging
import smtplib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urljoin, urlsplit
from uuid import UUID

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core import mail as django_mail
from django.core.mail import EmailMultiAlternatives
from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from django.db import DatabaseError
from django.db.models import F
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _, gettext_lazy

from ravi_django.calls.llm.errors import redact
from ravi_django.conf import conf, is_runserver
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.clock import present
from ravi_django.kernel import NotFoundError
from ravi_django.kernel.visible import money, visible
from ravi_django.models import HumanRequest
from ravi_django.models.names import word
from ravi_django.people import rights, site_rules
from ravi_django.people.top_ups import is_top_up
from ravi_django.runs import background_tasks
from ravi_django.users import name_of

_SALT = "ravi.request_link"


class ExpiredLinkError(NotFoundError):
    """The link is signed here and too old."""


def path_to(name: str, **kwargs: Any) -> str:
    """The path of a page, also outside of an HTTP request. Raises NoReverseMatch when the app's URLs are not mounted,
    or RAVI["URL_KWARGS"] lacks an argument of their prefix."""
    return reverse(f"ravi:{name}", kwargs={**conf.URL_KWARGS, **kwargs})


def socket(name: str = "") -> str:
    """The path of one of the app's sockets, or of all of them, for a page that is being served. Empty under Django's
    `runserver`, which has no sockets: a page that tried one would fill the log."""
    path = f"{conf.SOCKET_PATH.rstrip('/')}/"
    if is_runserver() and not (urlsplit(path).netloc or apps.is_installed("daphne")):
        return ""
    return urljoin(get_script_prefix(), f"{path}{name}/" if name else path)


@dataclass(frozen=True, slots=True)
class Link:
    """The link in an e-mail to one person about one request."""

    request: HumanRequest
    level: int  # the escalation level that it was sent at


def token_of(request: HumanRequest, user: Any) -> str:
    return _signer().sign_object([request.id.hex, str(user.pk), request.level, _opening(request)])


def parts_of(token: str) -> list[Any]:
    """The values that `token_of` has signed, without a query.

    Raises NotFoundError for a wrong signature, and ExpiredLinkError."""
    try:
        return list(_signer().unsign_object(token, max_age=conf.REQUEST_LINK_S))
    except SignatureExpired:
        raise ExpiredLinkError(_("The link has expired.")) from None
    except (BadSignature, ValueError, TypeError):
        raise NotFoundError(_("There is no such link.")) from None


def find(token: str, user: Any) -> Link:
    """Raises as `parts_of`, and NotFoundError for another person's link, and one from before a reassignment or a
    retry."""
    request_id, user_key, level, opening = parts_of(token)
    request = HumanRequest.objects.select_related("run", "owner", "answered_by").filter(id=request_id).first()
    if request is None or user_key != str(user.pk) or (level == request.level and opening != _opening(request)):
        raise NotFoundError(_("There is no such link."))
    return Link(request, level)


def _opening(request: HumanRequest) -> str:
    """When the present address was asked."""
    return (request.asked_at or request.created_at).isoformat()


def _signer() -> TimestampSigner:
    return TimestampSigner(salt=_SALT, sep=".")


TRIES = 8
FIRST_WAIT_S = 60.0  # after a failed try; it doubles, so the last try is two hours after the first
Tries = tuple[int, str | None]  # of one e-mail: how many, and when the next may begin; None: it is sent or given up


def unwritten(limit: int) -> list[UUID]:
    """Pending requests with e-mails to send at their present level, the oldest first. Without those whose failed
    e-mails are retried later."""
    waiting = _unwritten().order_by("id").only("id", "mails", "level", "asked_at", "created_at")
    due = (row.id for row in waiting.iterator() if all(map(_is_due_or_done, tries_of(row).values())))
    return list(islice(due, limit))


def find_unwritten(request_id: UUID | str) -> HumanRequest | None:
    """That request, if it has e-mails to send at its present level."""
    request: HumanRequest | None = _unwritten().filter(id=request_id).select_related("run", "owner").first()
    return request


def tries_of(request: HumanRequest) -> dict[str, Tries]:
    """The tries of the present level's e-mails, by the user's key."""
    tries: dict[str, Tries] = request.mails.get(_mails_key(request), {})
    return tries


def _mails_key(request: HumanRequest) -> str:
    return f"{request.level} {_opening(request)}"


def _is_due_or_done(tries: Tries) -> bool:
    return tries[1] is None or datetime.fromisoformat(tries[1]) <= present()


def claim(request: HumanRequest, user: Any) -> bool:
    """Claim the sending of this user's e-mail: only one sender may. False also when `request` has changed."""
    with transaction.atomic():
        row = _locked(request)
        count, again = (0, "") if row is None else tries_of(row).get(str(user.pk), (0, ""))
        if row is None or again is None or (again and not _is_due_or_done((count, again))):
            return False
        _note(row, user, (count + 1, None))
    return True


def failed(request: HumanRequest, user: Any) -> bool:
    """Release a claimed e-mail that could not be sent. Returns whether there is another try."""
    with transaction.atomic():
        row = _locked(request)
        count = TRIES if row is None else tries_of(row)[str(user.pk)][0]
        if row is None or count >= TRIES:
            return False
        row.notified = min(row.notified, row.level - 1)  # another sender may have marked the level as written
        _note(row, user, (count, (present() + timedelta(seconds=FIRST_WAIT_S * 2 ** (count - 1))).isoformat()))
    return True


def _locked(request: HumanRequest) -> HumanRequest | None:
    """The row, if nobody has answered or changed it."""
    rows = HumanRequest.objects.select_for_update(no_key=True)
    return rows.filter(id=request.id, status=HumanRequest.Status.PENDING, version=request.version).first()


def _note(row: HumanRequest, user: Any, tries: Tries) -> None:
    row.mails = {_mails_key(row): {**tries_of(row), str(user.pk): tries}}
    row.save(update_fields=["mails", "notified"])


def mark_written(request: HumanRequest, users: Sequence[Any]) -> bool:
    """Mark the level of the request as written. Returns False while an e-mail waits for a retry, and when the request
    has changed."""
    with transaction.atomic():
        row = _locked(request)
        if row is None or any(tries_of(row).get(str(user.pk), (0, ""))[1] is not None for user in users):
            return False
        row.notified = row.level
        row.save(update_fields=["notified"])
    return True


def give_up_writing(request_id: UUID | str) -> None:
    """Mark the present level as written, without e-mails."""
    _unwritten().filter(id=request_id).update(notified=F("level"))


def _unwritten() -> Any:
    rows = HumanRequest.objects.filter(status=HumanRequest.Status.PENDING, notified__lt=F("level"))
    return rows.exclude(kind=HumanRequest.Kind.CLIENT_TOOL)  # a program answers it


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
    missed = unwritten(BATCH)
    if missed:
        hint(missed)
    return len(missed)


def hint(request_ids: list[UUID]) -> None:
    """Send their e-mails in the background. Never raises: the sweep hints again."""
    for request_id in request_ids:
        background_tasks.hint("ravi.mail_request", str(request_id))


def send(request_id: UUID | str) -> int:
    """Send the missing e-mails of a pending request to the recipients of its present level. Returns how many were sent.
    Never raises."""
    if not conf.REQUEST_EMAIL or time.monotonic() < _rests_until:
        return 0
    try:
        request = find_unwritten(request_id)
        return 0 if request is None else _write(request)
    except (DatabaseError, NoReverseMatch) as error:  # an error of the site: retried until it is fixed
        log.error("request %s: no e-mail: %s", request_id, error, extra={"action": "mail.failed"})
    except Exception:  # mostly in a hook of the site: it must not block other requests
        log.exception("request %s: no e-mail is sent", request_id, extra={"action": "mail.given_up"})
        try:
            give_up_writing(request_id)
        except DatabaseError as error:  # the next sweep tries again
            log.error("request %s: %s", request_id, error, extra={"action": "mail.failed"})
    return 0


def _write(request: HumanRequest) -> int:
    users = [user for user in rights.candidates(request.to, request) if address_of(user)]
    sent = 0
    if users:
        url_of(request, users[0])  # may raise; nothing is claimed yet
        connection = _connection()
        try:
            connection.open()
            for user in users:
                sent += _send_one(request, user, connection)
        except OSError as error:  # the next e-mail would fail too
            _rest(error)
            return sent
        finally:
            _close(connection)
    mark_written(request, users)
    return sent


def _send_one(request: HumanRequest, user: Any, connection: Any) -> bool:
    if not claim(request, user):
        return False
    try:
        connection.send_messages([letter_to(request, user)])
    except Exception as error:
        level, what = (logging.WARNING, "retried") if failed(request, user) else (logging.ERROR, "given up")
        facts = (request.id, user.pk, what, type(error).__name__, error)
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
    is_rejected = request.kind == HumanRequest.Kind.APPROVAL
    return _("the request is rejected") if is_rejected else _("the agent continues without an answer")


def letter_to(request: HumanRequest, user: Any) -> EmailMultiAlternatives:
    """The e-mail to this user, in their language."""
    arguments = "" if request.arguments is None else json.dumps(request.arguments, indent=2, ensure_ascii=False)
    with translation.override(site_rules.language_of(user)):
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
            "name": visible(name_of(user)),
            "expires": _moment(request.expires_at),
            "end": end_of(request),
            "link_expires": _moment(present() + timedelta(seconds=conf.REQUEST_LINK_S)),
            "url": url_of(request, user),
        }
        letter = EmailMultiAlternatives(
            subject=context["title"],
            body=render_to_string("ravi/mail/request.txt", context),
            to=[address_of(user)],
            headers={"Auto-Submitted": "auto-generated"},
        )
        letter.attach_alternative(render_to_string("ravi/mail/request.html", context), "text/html")
    return letter


def url_of(request: HumanRequest, user: Any) -> str:
    """The URL of the user's link: REQUEST_EMAIL is the site's address. Raises as `links.path_to`."""
    return str(conf.REQUEST_EMAIL).rstrip("/") + path_to("decide", token=token_of(request, user))


def _in_one_line(text: str) -> str:
    """Without line breaks, which would begin another header."""
    return "".join(" " if not char.isprintable() else char for char in " ".join(text.split()))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{clock.written(at)} {timezone.localtime(at).tzname()}"
