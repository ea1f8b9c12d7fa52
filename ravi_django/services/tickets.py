"""One-use tickets, with which a program without cookies opens a websocket."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Any

from ravi_django.conf import conf
from ravi_django.models import Ticket
from ravi_django.runtime.db import clock
from ravi_django.services.openings import Credential, is_gone


def issue(user: Any, credential: Credential | None = None) -> tuple[str, datetime]:
    """A new ticket of `user` and its expiry, RAVI["TICKET_S"] from now. Only its hash is stored. The socket that it
    opens belongs to `credential`, which requested it."""
    Ticket.objects.filter(expires_at__lte=clock.now()).delete()
    ticket = secrets.token_urlsafe(32)
    row = Ticket(id=_hash(ticket), user=user, credential=credential, expires_at=clock.after(conf.TICKET_S))
    row.save(force_insert=True)
    row.refresh_from_db(fields=["expires_at"])
    return ticket, row.expires_at


def take(ticket: str) -> tuple[Any, Credential] | None:
    """Use a ticket: its active user and the credential that requested it; None for an unknown, used or expired one."""
    row = Ticket.objects.select_related("user").filter(id=_hash(ticket), expires_at__gt=clock.now()).first()
    if row is None:
        return None
    deleted, _ = Ticket.objects.filter(id=row.id).delete()  # of two concurrent calls, one deletes the row
    credential = Credential(*row.credential or ())
    return (row.user, credential) if deleted and row.user.is_active and not is_gone(credential, row.user) else None


def _hash(ticket: str) -> str:
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).hexdigest()
