"""Open sockets and event streams of this process. Each belongs to the credential that opened it.

Every LOOK_S seconds one check renews their places in RAVI["LIMITS"]. It ends those whose credential was deleted, whose
user is inactive, or whose user may no longer read the rows. It takes one query for each kind of credential and row.

A program without cookies opens one websocket, or the event stream of one run, with a ticket. A socket uses its ticket
up. An event stream keeps it: a browser's EventSource reconnects with the same address. It expires AGAIN_S after the
stream's last connection ended (LOOK_S later if a process was killed), AGAIN_S after the first connection that got the
stream's end, and MOST_S after its issue. A JSON page does not renew it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID
from weakref import WeakKeyDictionary

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends import cache, db, signed_cookies
from django.core.cache import caches
from django.db import router
from django.db.models import Model, Q
from django.db.models.functions import Least
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from ravi_django import limits
from ravi_django.db import alias
from ravi_django.engine.db import clock
from ravi_django.engine.db.threads import readers
from ravi_django.live.streams import hidden
from ravi_django.live.streams.reading import EVERY, Only
from ravi_django.models import Ticket
from ravi_django.models.base import Owned
from ravi_django.sealing import opened, seal

log = logging.getLogger("ravi.openings")

LOOK_S = 30.0
TICKET_S = 60.0  # a ticket opens something for the first time within this time
SLOW_S = 30.0  # a client that takes no frame for so long is cut
AGAIN_S = 60.0  # for this time after a stream's end, its ticket opens it again
MOST_S = 24 * 3600.0  # a ticket's age
LOGGED_OUT, NOT_ALLOWED = 4401, 4403  # close codes of sockets


class Credential(NamedTuple):
    """The session or token that opened a socket or stream."""

    kind: str = ""  # SESSION, a token's model ("authtoken.token"), or "" when there is nothing to look up
    key: str = ""  # the session's key, the token's primary key
    proof: str = ""  # for a session: the user's hash, which changes with the password

    @classmethod
    def of_session(cls, session: Any, user: Any) -> Credential:
        """`session` may be None, or have no key."""
        key = getattr(session, "session_key", None)
        return cls(SESSION, key, _hash_of(user)) if key else cls()

    @classmethod
    def of_token(cls, token: Any) -> Credential:
        """`token` is the authentication class's result; only a row can be looked up. A ticket has the credential that
        requested it."""
        if isinstance(token, Ticket):
            sealed = token.credential
            return cls(*json.loads(opened(sealed) or f'["{SESSION}"]')) if sealed else cls()  # with another key: ended
        return cls(token._meta.label_lower, str(token.pk)) if isinstance(token, Model) else cls()


SESSION = "session"


@dataclass(eq=False, slots=True)
class OpenStream:
    """An open socket or event stream."""

    user_id: Any
    credential: Credential
    slot: str  # its key of `limits.open_one`
    reads: Owned | None = None  # the row that the user must be allowed to read; None: the surface checks
    whole: bool = False  # shows values that are hidden from owners
    only: Only = EVERY  # the requested frames
    ticket: str = ""  # the id of its Ticket row, for a stream that a ticket opened
    revoked: bool = False
    ended: bool = False  # the last frame was the end of the stream
    on_revoked: Callable[[int, str], None] | None = None  # called on the event loop, with close code and reason

    def revoke(self, code: int, reason: str) -> None:
        self.revoked = True
        if self.on_revoked is not None:
            self.on_revoked(code, reason)


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, set[OpenStream]] = WeakKeyDictionary()
_checks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()


@asynccontextmanager
async def watched(open_stream: OpenStream) -> AsyncIterator[OpenStream]:
    """Check it while it is open; release its place at the end."""
    loop = asyncio.get_running_loop()
    open_streams = _open.setdefault(loop, set())
    open_streams.add(open_stream)
    if loop not in _checks:
        _checks[loop] = loop.create_task(_look_repeatedly(open_streams))
    try:
        yield open_stream
    finally:
        open_streams.discard(open_stream)
        if not open_streams and (task := _checks.pop(loop, None)) is not None:
            task.cancel()
        if open_stream.slot or open_stream.ticket:
            await readers().call(release, open_stream)


def release(open_stream: OpenStream) -> None:
    """It has ended. On a database thread. After the stream's end nothing renews its ticket again."""
    limits.close_one(open_stream.slot)
    keep_tickets([open_stream], AGAIN_S)
    if open_stream.ticket and open_stream.ended:
        Ticket.objects.filter(id=open_stream.ticket).update(ends_at=Least("ends_at", clock.after(AGAIN_S)))


async def _look_repeatedly(open_streams: Collection[OpenStream]) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await look(list(open_streams))
        except Exception as error:
            log.warning("open sockets were not checked: %s", error, extra={"action": "openings.look_failed"})


async def look(open_streams: Collection[OpenStream]) -> None:
    """Renew the places and tickets, and end streams that have lost their right."""
    await readers().call(limits.keep_open, [open_stream.slot for open_stream in open_streams])
    await readers().call(keep_tickets, open_streams)
    for open_stream, why in (await readers().call(lost, open_streams)).items():
        open_stream.revoke(*why)


def keep_tickets(open_streams: Collection[OpenStream], seconds: float = LOOK_S + AGAIN_S) -> None:
    """A killed process renews no ticket: it expires."""
    if ids := [open_stream.ticket for open_stream in open_streams if open_stream.ticket]:
        Ticket.objects.filter(id__in=ids).update(expires_at=clock.after(seconds))


def lost(open_streams: Collection[OpenStream]) -> dict[OpenStream, tuple[int, str]]:
    """Streams that have lost their right, with close code and reason. On a database thread."""
    model: Any = get_user_model()
    users = model._default_manager.using(alias()).in_bulk({open_stream.user_id for open_stream in open_streams})
    gone = _gone({open_stream.credential for open_stream in open_streams})
    rows = _rows(open_stream.reads for open_stream in open_streams)
    ended: dict[OpenStream, tuple[int, str]] = {}
    for open_stream in open_streams:
        user = users.get(open_stream.user_id)
        if user is None or not user.is_active:
            ended[open_stream] = LOGGED_OUT, "your account is no longer active"
        elif open_stream.credential in gone or not _is_proof(open_stream.credential, user):
            ended[open_stream] = LOGGED_OUT, "you have logged out, or the token was deleted"
        elif open_stream.reads is not None:
            row = rows.get((type(open_stream.reads), open_stream.reads.pk))
            if row is None or not row.is_for(user) or (open_stream.whole and not hidden.sees(user)):
                ended[open_stream] = NOT_ALLOWED, "you may no longer read this"
    return ended


def _rows(wanted: Iterable[Owned | None]) -> dict[tuple[type[Owned], Any], Any]:
    ids: dict[type[Owned], set[Any]] = defaultdict(set)
    for row in wanted:
        if row is not None:
            ids[type(row)].add(row.pk)
    kinds: dict[Any, Any] = {model: model._default_manager.only("owner", "tenant") for model in ids}
    return {(kind, pk): row for kind, rows in kinds.items() for pk, row in rows.in_bulk(ids[kind]).items()}


def _hash_of(user: Any) -> str:
    return str(user.get_session_auth_hash()) if hasattr(user, "get_session_auth_hash") else ""


def is_gone(credential: Credential, user: Any) -> bool:
    """Whether the user's credential is no longer valid."""
    return credential in _gone({credential}) or not _is_proof(credential, user)


def _is_proof(credential: Credential, user: Any) -> bool:
    return credential.kind != SESSION or constant_time_compare(credential.proof, _hash_of(user))


def _gone(credentials: Collection[Credential]) -> set[Credential]:
    keys: dict[str, set[str]] = defaultdict(set)
    for credential in credentials:
        keys[credential.kind].add(credential.key)
    valid = {kind: _valid(kind, of_kind) for kind, of_kind in keys.items()}
    return {credential for credential in credentials if credential.key not in valid[credential.kind]}


def _valid(kind: str, keys: set[str]) -> set[str]:
    if kind == "":
        return keys
    if kind == SESSION:
        return _sessions(keys)
    model: Any = apps.get_model(kind)
    rows = model._base_manager.using(router.db_for_write(model)).filter(pk__in=keys)  # a replica may be behind
    return {str(pk) for pk in rows.values_list("pk", flat=True)}


def _sessions(keys: set[str]) -> set[str]:
    store: Any = import_module(settings.SESSION_ENGINE).SessionStore
    if issubclass(store, signed_cookies.SessionStore):
        return keys  # the cookie is the session: the server stores nothing to look up
    if issubclass(store, db.SessionStore):
        model = store.get_model_class()
        rows = model.objects.using(router.db_for_write(model)).filter(session_key__in=keys)
        return set(rows.filter(expire_date__gt=timezone.now()).values_list("session_key", flat=True))
    if issubclass(store, cache.SessionStore):
        prefix = store.cache_key_prefix
        stored = caches[settings.SESSION_CACHE_ALIAS].get_many([prefix + key for key in keys])
        return {key.removeprefix(prefix) for key in stored}
    return {key for key in keys if store().exists(key)}


_PORTS = {"http": 80, "https": 443}


def parts_of(origin: str) -> tuple[str, str, int]:
    """Scheme, host and port of an origin. Raises ValueError."""
    parts = urlsplit(origin)
    port = parts.port or _PORTS.get(parts.scheme)
    if not parts.hostname or port is None or origin != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
        raise ValueError(f"{origin!r} is not an origin such as https://app.example.com")
    return parts.scheme, parts.hostname, port


def issue_ticket(user: Any, credential: Credential | None = None) -> tuple[str, datetime]:
    """A new ticket of `user` and its expiry, TICKET_S from now. Only its hash is stored. Its streams
    belong to `credential`, which requested it and is stored encrypted."""
    ticket = secrets.token_urlsafe(32)
    times = {"expires_at": clock.after(TICKET_S), "ends_at": clock.after(MOST_S)}
    sealed = seal(json.dumps(credential)) if credential else None
    row = Ticket(id=_hash(ticket), user=user, credential=sealed, **times)
    row.save(force_insert=True)
    row.refresh_from_db(fields=["expires_at"])
    return ticket, row.expires_at


def take_ticket(ticket: str, run: UUID | None = None) -> Ticket | None:
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
