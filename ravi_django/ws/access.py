"""Who opens a socket, and what they ask for in its address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from channels.security.websocket import OriginValidator
from django.conf import settings
from django.contrib.auth import get_user_model

from ravi_django.runtime import tickets
from ravi_django.runtime.database import readers

BAD_REQUEST, UNKNOWN_USER, BAD_ORIGIN, NOT_FOUND = 4400, 4401, 4403, 4404

MAX_SEQ = 2**63 - 1


class Refused(Exception):
    """The socket is closed with `code`; `reason` goes into the close frame (at most 123 bytes)."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"{code} {reason}")


async def user_of(scope: Mapping[str, Any]) -> Any:
    """The user behind a ticket, or else behind the session cookie. Raises Refused."""
    if (ticket := query(scope, "ticket")) is not None:
        user = await readers().call(tickets.take, ticket)
        if user is None:
            raise Refused(UNKNOWN_USER, "the ticket was used, is too old or never was")
        return user
    user = scope.get("user")  # a site without AuthMiddleware has none: tickets alone work there
    if user is None or not user.is_authenticated or not user.is_active:
        raise Refused(UNKNOWN_USER, "log in, or bring a ticket")
    if not origin_allowed(scope):
        raise Refused(BAD_ORIGIN, "this origin is not in ALLOWED_HOSTS; programs come with a ticket")
    return user


def active(pk: Any) -> Any | None:
    """The user as they are now, on a database thread; None once they are gone or locked out."""
    return get_user_model()._default_manager.filter(pk=pk, is_active=True).first()


def origin_allowed(scope: Mapping[str, Any]) -> bool:
    """Browsers send cookies along with the sockets of any page: only those of this site's pages count.

    The rules of channels' AllowedHostsOriginValidator, but a missing Origin is never allowed.
    """
    allowed = settings.ALLOWED_HOSTS
    if settings.DEBUG and not allowed:
        allowed = ["localhost", "127.0.0.1", "[::1]"]
    origins = [value for name, value in scope.get("headers", []) if name == b"origin"]
    if len(origins) != 1:
        return False
    try:
        origin = urlsplit(origins[0].decode("latin-1"))
        return bool(origin.hostname) and OriginValidator(None, allowed).valid_origin(origin)
    except ValueError:
        return False


def after_of(scope: Mapping[str, Any]) -> int:
    """The last event number that the client has; 0 without `after`. Raises Refused."""
    text = query(scope, "after")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_SEQ):
        raise Refused(BAD_REQUEST, "after must be a whole number from 0 on: the last seq that you have")
    return int(text)


def uuid_of(text: str) -> UUID:
    """An id in a path. Raises Refused: a malformed id is nobody's."""
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text.lower():
        raise Refused(NOT_FOUND, "there is no such run or session of yours")
    return found


def query(scope: Mapping[str, Any], name: str) -> str | None:
    """The last value of a query parameter."""
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qs(text, keep_blank_values=True)[name][-1]
    except (KeyError, ValueError):
        return None
