"""Authentication of the REST API: RAVI["API_AUTHENTICATION"], else the site's classes, else token and session."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.apps import apps
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.settings import api_settings

from ravi_django.conf import conf
from ravi_django.services.openings import Credential, take_ticket

TOKEN = "rest_framework.authentication.TokenAuthentication"  # noqa: S105 - a class
SESSION = "rest_framework.authentication.SessionAuthentication"


def authenticators() -> list[Any]:
    """Instances of the configured classes, in order; token (when its app is installed) and session by default."""
    own = [TOKEN, SESSION] if apps.is_installed("rest_framework.authtoken") else [SESSION]
    # An empty list, which would refuse all users, counts as not set.
    paths = conf.API_AUTHENTICATION or api_settings.user_settings.get("DEFAULT_AUTHENTICATION_CLASSES") or own
    return [_class_of(path)() for path in paths]


def challenge(request: Any, used: list[Any]) -> str:
    """The WWW-Authenticate header of the first authenticator that has one. Session authentication has none; without a
    header DRF would answer missing credentials with 403."""
    found = (authenticator.authenticate_header(request) for authenticator in used)
    return next(filter(None, found), 'Session realm="api"')


def credential_of(request: Any) -> Credential:
    """The session of a request, or its token's row."""
    if isinstance(request.successful_authenticator, SessionAuthentication):
        return Credential.of_session(getattr(request._request, "session", None), request.user)
    return Credential.of_token(request.auth)


class TicketAuthentication(BaseAuthentication):
    """`?ticket=` in the address of an event stream: a browser's EventSource sends no headers."""

    def authenticate(self, request: Any) -> tuple[Any, Any] | None:
        ticket = request.query_params.get("ticket")
        if ticket is None:
            return None
        found = take_ticket(ticket, request.parser_context["view"].run_id)
        if found is None:
            raise AuthenticationFailed("the ticket was used, has expired or is unknown")
        return found.user, found


@cache
def _class_of(path: Any) -> Any:
    return import_string(path) if isinstance(path, str) else path
