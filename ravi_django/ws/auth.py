"""The user of a socket, its origin, and the arguments in its address."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from channels.auth import get_user
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.http import parse_cookie
from django.utils.http import is_same_domain

from ravi_django.conf import conf
from ravi_django.engine.db.threads import readers
from ravi_django.people.site_rules import active_users
from ravi_django.services.open_streams import Credential, is_gone, parts_of, take_ticket

BAD_REQUEST, UNKNOWN_USER, BAD_ORIGIN, NOT_FOUND, TOO_MANY, UNSUPPORTED = 4400, 4401, 4403, 4404, 4429, 4501

MAX_SEQ = 2**63 - 1


class Refused(Exception):
    """The socket is closed with `code`; `reason` goes into the close frame (at most 123 bytes)."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"{code} {reason}")


async def user_of(scope: Mapping[str, Any]) -> tuple[Any, Credential]:
    """The user of a ticket, else of the session cookie, and the credential. Raises Refused."""
    if (ticket := query(scope, "ticket")) is not None:
        token = await readers().call(take_ticket, ticket)
        if token is None:
            raise Refused(UNKNOWN_USER, "the ticket was used, has expired or is unknown")
        return token.user, Credential.of_token(token)
    if "user" in scope:  # of a middleware of the site
        user, session = scope["user"], scope.get("session")
    else:
        user, session = await readers().call(_by_cookie, scope)
    if user is None or not user.is_authenticated or not user.is_active:
        raise Refused(UNKNOWN_USER, "log in, or use a ticket")
    if not origin_allowed(scope):
        raise Refused(BAD_ORIGIN, "this origin is not allowed: see RAVI['SOCKET_ORIGINS']; programs use a ticket")
    return user, Credential.of_session(session, user)


def _by_cookie(scope: Mapping[str, Any]) -> tuple[Any, Any]:
    """The user of the session cookie, and the session. On a database thread, which keeps its connection: channels'
    AuthMiddleware opens a connection for each socket, before it is accepted."""
    header = next((value for name, value in scope.get("headers", []) if name == b"cookie"), b"")
    key = parse_cookie(header.decode("latin-1")).get(settings.SESSION_COOKIE_NAME)
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    return get_user.func({"session": session}), session


def active(pk: Any) -> Any | None:
    """The user as they are now; None for a deleted or inactive user. On a database thread."""
    return active_users().filter(pk=pk).first()


def sender(pk: Any, credential: Credential) -> Any:
    """The user as they are now, for a frame that the client has sent. Raises Refused. On a database thread."""
    user = active(pk)
    if user is None:
        raise Refused(UNKNOWN_USER, "your account is no longer active")
    if is_gone(credential, user):
        raise Refused(UNKNOWN_USER, "you have logged out, or the token was deleted")
    return user


def origin_allowed(scope: Mapping[str, Any]) -> bool:
    """Whether the origin is this site's, or in CSRF_TRUSTED_ORIGINS or RAVI["SOCKET_ORIGINS"], by scheme, host and
    port. Browsers send cookies with the sockets of any page. A missing origin is refused."""
    origins = [value for name, value in scope.get("headers", []) if name == b"origin"]
    if len(origins) != 1:
        return False
    # As a request, so that the site's settings for proxies and hosts apply.
    scheme = "https" if scope.get("scheme") == "wss" else "http"
    request = ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, BytesIO())
    try:
        origin = parts_of(origins[0].decode("latin-1"))
        if origin == parts_of(f"{request.scheme}://{request.get_host()}"):
            return True
    except (ValueError, DisallowedHost):
        return False
    return any(_covers(allowed, origin) for allowed in [*settings.CSRF_TRUSTED_ORIGINS, *conf.SOCKET_ORIGINS])


def _covers(allowed: str, origin: tuple[str, str, int]) -> bool:
    """Whether `allowed`, which may contain a wildcard (`https://*.example.com`), matches this origin."""
    scheme, host, port = parts_of(allowed)
    return (scheme, port) == (origin[0], origin[2]) and is_same_domain(origin[1], host.removeprefix("*"))


def after_of(scope: Mapping[str, Any]) -> int:
    """The number of the last event that the client has; 0 without `after`. Raises Refused."""
    text = query(scope, "after")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_SEQ):
        raise Refused(BAD_REQUEST, "after must be a whole number, at least 0: the last seq that you have")
    return int(text)


def uuid_of(text: str) -> UUID:
    """An id in a path. Raises Refused."""
    try:
        uuid = UUID(text)
    except ValueError:
        uuid = None
    if uuid is None or str(uuid) != text.lower():
        raise Refused(NOT_FOUND, "there is no such run or session of yours")
    return uuid


def query(scope: Mapping[str, Any], name: str) -> str | None:
    """The last value of a query parameter."""
    text: str = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qs(text, keep_blank_values=True)[name][-1]
    except (KeyError, ValueError):
        return None
