"""Every error of the REST API: `{"error": {"code", "message", "field"?}}`. Bad input also has `errors`, all faults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import redis
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from django.utils.log import log_response
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from ravi_django.kernel import (
    ConflictError,
    ForbiddenError,
    InputTooLargeError,
    InvalidInputError,
    KernelError,
    NotFoundError,
    RateLimitedError,
    UnsupportedError,
)

STATUSES = {  # the code of an error, and its description in the OpenAPI document
    400: ("invalid_input", "Bad input; `field` names what to fix. Nothing was written."),
    401: ("unauthenticated", "No credentials, or wrong ones."),
    403: ("forbidden", "The user may see it but not do it; or no CSRF token with a session cookie."),
    404: ("not_found", "It does not exist, or belongs to another user."),
    405: ("method_not_allowed", "Not with this method."),
    406: ("not_acceptable", "Not in any of the accepted media types."),
    409: ("conflict", "The present state forbids it."),
    411: ("length_required", "A body without Content-Length."),
    413: ("too_large", "Too large. Nothing was written."),
    415: ("unsupported_media_type", "The body is not application/json."),
    422: ("run_failed", "The run failed; or `run_not_finished`: it goes on. `run` is its id."),
    429: ("throttled", "Too many calls of this user; `Retry-After` is the number of seconds to wait."),
    500: ("internal", "An error of the server; it has been logged."),
    501: ("unsupported", "The site is not set up for it."),
    503: (
        "unavailable",
        "A service cannot be reached; or `busy`: the process has no room for the body.",
    ),
}

LONGEST = 1000  # characters of a message: it may repeat input of the client
MOST_FAULTS = 50  # in `errors`


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    message: str
    code: str = "invalid"
    field: str | None = None  # the part of the request to fix

    def body(self) -> dict[str, Any]:
        field = {"field": self.field[:LONGEST]} if self.field else {}
        return {"code": self.code, "message": self.message[:LONGEST], **field}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    status: int
    message: str
    code: str = ""  # empty: that of the status
    field: str | None = None  # the part of the request to fix
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    errors: tuple[Fault, ...] = ()  # all faults of bad input, including the first

    def body(self) -> dict[str, Any]:
        code = self.code or STATUSES.get(self.status, ("error", ""))[0]
        body: dict[str, Any] = {"error": Fault(self.message, code, self.field).body()}
        if code == "invalid_input":
            body["errors"] = [fault.body() for fault in self.errors or [Fault(self.message, field=self.field)]]
        return body


def respond(exc: Exception, context: dict[str, Any], shape: Callable[[Problem], Any] = Problem.body) -> Response:
    """DRF's exception handler of all views: no exception leaves them. `shape` makes the body."""
    problem = problem_of(exc)
    set_rollback()
    response = Response(shape(problem), status=problem.status, headers=problem.headers)
    if problem.status >= 500 and problem.status != 501 and problem.code != "busy":
        _report(exc, context["request"]._request, response)
    return response


def problem_of(exc: Exception) -> Problem:
    if isinstance(exc, KernelError):
        return _of_kernel(exc)
    if isinstance(exc, exceptions.APIException):
        return _of_drf(exc)
    for kinds, status, message in _OTHERS:
        if isinstance(exc, kinds):
            return Problem(status, message)
    state = getattr(exc.__cause__, "sqlstate", None) or ""  # Django has several classes for these
    if isinstance(exc, (OperationalError, InterfaceError, redis.RedisError)) or state.startswith(UNAVAILABLE):
        return Problem(503, AWAY, headers={"Retry-After": "1"})
    return Problem(500, INTERNAL)


INTERNAL = "an internal error; it has been logged"
AWAY = "a service that this one needs cannot be reached; try again"
# SQLSTATE: the connection fails, the server accepts no writes, lacks resources, or is shutting down
UNAVAILABLE = ("08", "25006", "53", "57P")

_OTHERS: list[tuple[Any, int, str]] = [
    (RequestDataTooBig, 413, "the body is larger than this site accepts"),
    (Http404, 404, "not found"),
    (PermissionDenied, 403, "you may not do that"),
    ((SuspiciousOperation, BadRequest, UnreadablePostError), 400, "the request cannot be read"),
]
_KERNEL: dict[type[KernelError], int] = {  # a subclass before its base class
    InputTooLargeError: 413,
    InvalidInputError: 400,
    NotFoundError: 404,
    ForbiddenError: 403,
    UnsupportedError: 501,
}


def _of_kernel(exc: KernelError) -> Problem:
    if isinstance(exc, RateLimitedError):
        return Problem(429, str(exc), headers={"Retry-After": str(math.ceil(exc.retry_after or 1))})
    if isinstance(exc, ConflictError):
        return Problem(409, str(exc), exc.code)
    status = next((status for kind, status in _KERNEL.items() if isinstance(exc, kind)), None)
    code = getattr(exc, "code", "")
    return Problem(status, str(exc), code, field=getattr(exc, "field", None)) if status else Problem(500, INTERNAL)


def _of_drf(exc: exceptions.APIException) -> Problem:
    headers = {}
    if challenge := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    code = "invalid_json" if isinstance(exc, exceptions.ParseError) else getattr(exc, "code", "")
    errors = tuple(islice(_errors(exc.detail), MOST_FAULTS))
    return Problem(exc.status_code, errors[0].message, code, errors[0].field, headers, errors)


def _errors(detail: Any, path: str = "") -> Iterator[Fault]:
    """All faults of a (nested) validation error, in order."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            whole = key in ("non_field_errors", "__all__")
            yield from _errors(inner, path if whole else f"{path}.{key}".lstrip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _errors(inner, path)
    else:
        yield Fault(str(detail), getattr(detail, "code", "invalid"), path or None)


def _report(exc: Exception, request: Any, response: Response) -> None:
    """As Django does for an exception that leaves a view: a log line with the traceback, and the signal for error
    monitors."""
    got_request_exception.send(sender=None, request=request)
    log_response("%s: %s", type(exc).__name__, request.path, response=response, request=request, exception=exc)
