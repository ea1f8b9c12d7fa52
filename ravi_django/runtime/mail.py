"""E-mail to the people who may answer: RAVI["REQUEST_EMAIL"]. With it off, nothing here costs anything.

A request's commit is followed by a hint (a Celery task, without a broker a thread); the sweep finds what no hint has
reached. Whoever comes sends to each person at most once a level: the link's row is claimed before the e-mail goes out.
A process that dies in between loses that one e-mail; the request still stands in the inbox. An e-mail that cannot be
sent is tried again later, a few times; no run waits for any of it.
"""

from __future__ import annotations

import logging
import smtplib
import time
from typing import Any
from uuid import UUID

from django.core import mail as django_mail
from django.db import DatabaseError
from django.urls import NoReverseMatch

from ravi_django.conf import conf
from ravi_django.models import HumanRequest, RequestLink
from ravi_django.runtime import background, people
from ravi_django.runtime.letters import address_of, letter_to, url_of
from ravi_django.runtime.store import links as links_rows

log = logging.getLogger("ravi.mail")

BATCH = 20  # requests that a sweep looks after
SMTP_TIMEOUT_S = 20.0  # where the site's EMAIL_TIMEOUT is not set, a silent server would hold us for ever
REST_S = 30.0  # after the server has failed us, this process leaves it alone for so long

_rests_until = 0.0


def on_request(sender: Any, request: HumanRequest, **kwargs: Any) -> None:
    """A receiver of `request_opened` and `request_changed`."""
    if conf.REQUEST_EMAIL:
        hint([request.pk])


def sweep() -> int:
    """See to the requests that no hint has reached, a bounded number at once. Returns how many."""
    if not conf.REQUEST_EMAIL:
        return 0
    missed = links_rows.unwritten(BATCH)
    if missed:
        hint(missed)
    return len(missed)


def hint(request_ids: list[UUID]) -> None:
    """Have their e-mails sent, elsewhere. Never raises: the sweep hints again."""
    for request_id in request_ids:
        background.hint("ravi.mail_request", str(request_id))


def send(request_id: UUID | str) -> int:
    """Write to the people whom a pending request means at its present level, and have not been written to. Returns how
    many e-mails went out. Never raises."""
    if not conf.REQUEST_EMAIL or time.monotonic() < _rests_until:
        return 0
    try:
        request = links_rows.find_unwritten(request_id)
        return 0 if request is None else _write(request)
    except (DatabaseError, NoReverseMatch) as error:  # nobody's fault who is written to: it will be fixed
        log.error("request %s: no e-mail: %s", request_id, error, extra={"action": "mail.failed"})
    except Exception:  # the site's own hooks, in most cases; the others' e-mails are not to wait for it
        log.exception("request %s: nobody is written to", request_id, extra={"action": "mail.given_up"})
        _give_up(request_id)
    return 0


def _give_up(request_id: UUID | str) -> None:
    try:
        links_rows.give_up_writing(request_id)
    except DatabaseError as error:  # the next sweep comes here again
        log.error("request %s: %s", request_id, error, extra={"action": "mail.failed"})


def _write(request: HumanRequest) -> int:
    found = [user for user in people.candidates(request.to, request) if address_of(user)]
    users = {user.pk: user for user in found}
    links = links_rows.make_links(request, found, conf.REQUEST_LINK_S)
    sent = 0
    if links:
        url_of(links[0])  # before anything is claimed
        connection = _connection()
        try:
            connection.open()
            for link in links:
                link.user = users[link.user_id]
                sent += _send_one(link, request, connection)
        except OSError as error:  # the next e-mail would fare no better
            _rest(error)
            return sent
        finally:
            _close(connection)
    links_rows.mark_written(request, found)
    return sent


def _send_one(link: RequestLink, request: HumanRequest, connection: Any) -> bool:
    if not links_rows.claim_link(link, request):
        return False
    try:
        connection.send_messages([letter_to(link, request)])
    except Exception as error:
        again = links_rows.link_failed(link)
        level = logging.WARNING if again else logging.ERROR
        words = "it is tried again" if again else "it is given up"
        told = (link.request_id, link.user_id, words, type(error).__name__, error)
        log.log(level, "request %s: no e-mail to user %s, %s: %s: %s", *told, extra={"action": "mail.failed"})
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
    """`MAILERS` came with Django 6.1."""
    mailers = getattr(django_mail, "mailers", None)
    return django_mail.get_connection() if mailers is None else mailers.default


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # all that could be sent is sent
        log.warning("the mail server's connection: %s", error, extra={"action": "mail.close"})


def _rest(error: Exception) -> None:
    global _rests_until
    _rests_until = time.monotonic() + REST_S
    told = (REST_S, type(error).__name__, error)
    log.warning("the mail server is left alone for %g s: %s: %s", *told, extra={"action": "mail.server_away"})
