"""The base of all views: authentication by RAVI["API_AUTHENTICATION"], bodies, and errors in one shape."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db.transaction import non_atomic_requests
from django.urls import Resolver404, resolve
from django.utils.decorators import method_decorator
from django.utils.module_loading import import_string
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import (
    APIException,
    AuthenticationFailed,
    MethodNotAllowed,
    NotAuthenticated,
    NotFound,
    ParseError,
)
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from ravi_django import limits
from ravi_django.api import filters
from ravi_django.api.filters import Pages
from ravi_django.bytes_budget import process_bytes
from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError, InvalidInputError
from ravi_django.kernel.json_values import read_json
from ravi_django.services import problems
from ravi_django.services.open_streams import Credential, take_ticket

TOKEN = "rest_framework.authentication.TokenAuthentication"  # noqa: S105 - a class
SESSION = "rest_framework.authentication.SessionAuthentication"


def authenticators() -> list[Any]:
    """Instances of the configured classes, in order; token (when its app is installed) and session by default."""
    default = [TOKEN, SESSION] if apps.is_installed("rest_framework.authtoken") else [SESSION]
    # An empty list, which would refuse all users, counts as not set.
    paths = conf.API_AUTHENTICATION or api_settings.user_settings.get("DEFAULT_AUTHENTICATION_CLASSES") or default
    return [_class_of(path)() for path in paths]


def challenge(request: Any, used: list[Any]) -> str:
    """The WWW-Authenticate header of the first authenticator that has one. Session authentication has none; without a
    header DRF would answer missing credentials with 403."""
    headers = (authenticator.authenticate_header(request) for authenticator in used)
    return next(filter(None, headers), 'Session realm="api"')


def ways(request: Any, used: list[Any]) -> str:
    """The message of a 401 without credentials: what this site accepts."""
    schemes = [str(one.authenticate_header(request) or "").partition(" ")[0] for one in used]
    credentials = [f"the header Authorization: {scheme} …" for scheme in dict.fromkeys(schemes) if scheme]
    if any(isinstance(one, SessionAuthentication) for one in used):
        credentials.append("the session cookie and X-CSRFToken of a page of this site")
    add = "" if any(schemes) else "; for programs add rest_framework.authtoken to INSTALLED_APPS and make a token"
    return f"no credentials: send {' or '.join(credentials)}{add}"


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
        token = take_ticket(ticket, request.parser_context["view"].run_id)
        if token is None:
            raise AuthenticationFailed("the ticket was used, has expired or is unknown")
        return token.user, token


@cache
def _class_of(path: Any) -> Any:
    return import_string(path) if isinstance(path, str) else path


def max_body() -> int:
    """Bytes. JSON may encode a character of one byte as six (`\\u0061`); `submit` measures the input itself."""
    return 6 * int(conf.MAX_INPUT_BYTES) + 64 * 1024


class StrictJSONParser(BaseParser):
    """Refuses what `read_json` refuses. The body must be an object. `ApiView` has checked its size."""

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        body = stream.read()
        try:
            parsed = read_json(body)
        except InvalidInputError as error:
            if error.field is None:  # of the text, not of a value in it
                raise ParseError(str(error)) from None
            error.field = (error.field or "").partition(".")[0] or None
            raise
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise ParseError("the body must be a JSON object")
        return parsed


MAX_ACCEPTED = 50  # media types of the header Accept


def _non_atomic(view: Any) -> Any:
    for alias in settings.DATABASES:
        view = non_atomic_requests(alias)(view)
    return view


# ATOMIC_REQUESTS is a setting of each database.
non_atomic = method_decorator(_non_atomic, name="dispatch")


class LengthRequired(APIException):
    """A WSGI server may pass a chunked body on without its length, and DRF would read it as an empty one."""

    status_code = 411
    default_detail = "this server reads no chunked body: send the header Content-Length"


class Busy(APIException):
    """The process has no room for the body; see RAVI["PROCESS_BYTES"]."""

    status_code = 503
    default_detail = "this process has too many bytes of requests at once; send this one again"
    code, wait = "busy", 2  # seconds


class _Negotiation(DefaultContentNegotiation):
    # Only the Accept header decides, not `?format=`.
    settings = SimpleNamespace(URL_FORMAT_OVERRIDE=None)  # type: ignore[assignment]

    def get_accept_list(self, request: Any) -> list[str]:
        return super().get_accept_list(request)[:MAX_ACCEPTED]


class ApiView(APIView):
    """JSON in and out, authenticated, with every error in our shape."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    permission_classes = [IsAuthenticated]
    renderer_classes = [JSONRenderer]
    parser_classes = [StrictJSONParser]
    content_negotiation_class: type[DefaultContentNegotiation] = _Negotiation
    reads_chunks = False
    body_field: str | None = None  # in the error of a body that is too long
    versioning_class = None
    schema: Any = AutoSchema()
    limit = ""  # the name in RAVI["LIMITS"] that unsafe methods count against
    _held = 0  # bytes of the budget of this process

    def get_authenticators(self) -> list[Any]:
        return authenticators()

    def get_authenticate_header(self, request: Any) -> str:
        return challenge(request, self.get_authenticators())

    def longest_body(self) -> int:
        """Bytes."""
        return max_body()

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(request, ASGIRequest):
            limits.wsgi_threads.add(threading.current_thread())
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            self.give_back()

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self.allowed_methods and request.method not in self.allowed_methods:  # before the credentials and the query
            raise MethodNotAllowed(request.method)
        self._take_body(request._request)  # before the check of the CSRF token, which may read it
        super().initial(request, *args, **kwargs)
        is_chunked = "Transfer-Encoding" in request.headers and not isinstance(request._request, ASGIRequest)
        if is_chunked and not self.reads_chunks:
            raise LengthRequired
        if self.limit and request.method not in SAFE_METHODS:
            limits.count(request.user, self.limit)

    def _take_body(self, request: Any) -> None:
        """Count the body before it is read. Raises InputTooLargeError, and Busy when the process has no room for it."""
        size, most = _body_bytes(request), self.longest_body()
        if size > most:
            raise InputTooLargeError(f"the body has {size} bytes, the limit is {most}", field=self.body_field)
        if size and not process_bytes.try_take(size):
            raise Busy
        self._held = size

    def give_back(self) -> None:
        """The body is not held any more."""
        process_bytes.give_back(self._held)
        self._held = 0

    def validated(self, serializer: Any, body: Any = None) -> dict[str, Any]:
        """The validated body; null means absent."""
        context = {"user": self.request.user}
        read = serializer(data=self.request.data if body is None else body, context=context)
        read.is_valid(raise_exception=True)
        return {name: value for name, value in read.validated_data.items() if value is not None}

    def get_exception_handler(self) -> Any:
        return problems.respond

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, NotAuthenticated):
            exc.detail = ways(self.request, self.get_authenticators())  # type: ignore[assignment]
        response: Response = super().handle_exception(exc)
        # An error is JSON, whatever the client accepts.
        self.request.accepted_renderer = JSONRenderer()
        self.request.accepted_media_type = JSONRenderer.media_type
        return response

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "no-store")
        return response


def _body_bytes(request: Any) -> int:
    """Of the body. Under ASGI the server has written it to a file, whose size counts: a chunked body may have a false
    length beside it. The size becomes the request's length, without which DRF reads nothing."""
    body = getattr(request, "_stream", None)
    if not isinstance(body, SpooledTemporaryFile):  # under WSGI; a chunked one has no length
        length = request.META.get("CONTENT_LENGTH") or ""
        return int(length[:18]) if length.isdecimal() else 0
    size = int(body.seek(0, SEEK_END))
    body.seek(0)
    request.META["CONTENT_LENGTH"] = str(size)
    return size


class ApiViewSet(ApiView, GenericViewSet[Any]):
    """A resource: the rows of `queryset` that the user may see."""

    lookup_field = "id"
    lookup_value_converter = "uuid"
    filter_backends = [filters.Backend]
    serializer_class: Any = None
    filterset_class: Any = None
    pagination_class: type[CursorPagination] = Pages
    ordering = "-id"
    weighs: tuple[str, ...] = ()  # columns that may be long; a page reads at most MAX_BYTES of them

    def get_queryset(self) -> Any:
        rows: Any = super().get_queryset()
        return rows.for_user(self.request.user)

    def get_object(self) -> Any:
        """Raises NotFound, also for another user's row."""
        rows = self.get_queryset()
        row = rows.filter(id=self.kwargs["id"]).first()
        if row is None:
            noun = str(rows.model._meta.model_name).removeprefix("human").removeprefix("ravi")
            raise NotFound(f"there is no {noun} {self.kwargs['id']} of yours")
        return row

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "user": self.request.user}

    def response_of(self, row: Any, status: int = 200) -> Response:
        return Response(self.get_serializer(row).data, status=status)

    def page(self, rows: Any, prepare: Any = None, sizes: Any = None) -> Response:
        """A page of `rows`. `prepare` completes the page's rows, or returns other rows to show; `sizes` returns the
        bytes that it adds to each row."""
        pages: Any = self.paginator
        fitting = pages.paginate_queryset(rows, self.request, self)
        if sizes is not None:
            fitting = pages.fit(fitting, sizes(fitting))
        prepared = (prepare(fitting) if prepare is not None else None) or fitting
        data = self.get_serializer(prepared, many=True).data
        parts = data if len(prepared) == len(fitting) else _with_their_own(fitting, prepared, data)
        response: Response = pages.get_paginated_response(pages.cut(fitting, parts))
        return response


def _with_their_own(rows: list[Any], prepared: list[Any], data: list[Any]) -> list[list[Any]]:
    """The JSON of each row, and of the rows that `prepare` has added after it."""
    ids: set[int] = {id(row) for row in rows}
    parts: list[list[Any]] = []
    for row, body in zip(prepared, data, strict=True):
        if id(row) in ids:
            parts.append([])
        parts[-1].append(body)
    return parts


class NothingView(ApiView):
    """404 in our shape, for any method, at every other address under the mount."""

    schema = None

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # credentials first
        raise NotFound(f"there is nothing at {request.path}{_hint(request.path_info)}")


def _hint(path: str) -> str:
    if path.endswith("/"):
        return ""
    try:
        match = resolve(f"{path}/")
    except Resolver404:
        return ""
    return "" if getattr(match.func, "view_class", None) is NothingView else "; add a slash at the end"
