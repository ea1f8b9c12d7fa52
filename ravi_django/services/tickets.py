"""Tickets, with which a program without cookies opens one websocket, or the event stream of one run.

A socket uses its ticket up. An event stream keeps it: a browser's EventSource reconnects with the same address. It
expires AGAIN_S after the stream's last connection ended (LOOK_S later if a process was killed), AGAIN_S after the first
connection that got the stream's end, and MOST_S after its issue. A JSON page does not renew it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django.conf import conf
from ravi_django.models import Ticket
from ravi_django.runtime.db import clock
from ravi_django.runtime.sources.secrets import seal
from ravi_django.services.openings import Credential, is_gone

MOST_S = 24 * 3600.0


def issue(user: Any, credential: Credential | None = None) -> tuple[str, datetime]:
    """A new ticket of `user` and its expiry, RAVI["TICKET_S"] from now. Only its hash is stored. What it opens
    belongs to `credential`, which requested it and is stored encrypted."""
    ticket = secrets.token_urlsafe(32)
    times = {"expires_at": clock.after(conf.TICKET_S), "ends_at": clock.after(MOST_S)}
    sealed = seal(json.dumps(credential)) if credential else None
    row = Ticket(id=_hash(ticket), user=user, credential=sealed, **times)
    row.save(force_insert=True)
    row.refresh_from_db(fields=["expires_at"])
    return ticket, row.expires_at


def take(ticket: str, run: UUID | None = None) -> Ticket | None:
    """Use a ticket for a socket, or for the event stream of `run`. Returns its row with the active user; None for an
    unknown or expired one, and for one that was used for something else."""
    valid = Ticket.objects.filter(expires_at__gt=clock.now(), ends_at__gt=clock.now())
    row = valid.select_related("user").filter(id=_hash(ticket)).first()
    if row is None:
        return None
    unused = Q(id=row.id, run=None)
    if run is None:
        used, _ = Ticket.objects.filter(unused).delete()  # of two concurrent calls, one deletes the row
    else:
        rows = Ticket.objects.filter(unused | Q(id=row.id, run=run))
        used = rows.update(run=run)
    return row if used and row.user.is_active and not is_gone(Credential.of_token(row), row.user) else None


def _hash(ticket: str) -> str:
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).hexdigest()
