"""Every error under the mount: `{"error": {"code", "message", "field"?}}`. Bad input has also `errors`, all faults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
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
)

CODES = {
    400: "invalid_input",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    411: "length_required",
    413: "too_large",
    415: "unsupported_media_type",
    429: "throttled",
    500: "internal",
    503: "unavailable",
}

LONGEST = 1000  # characters of a message: it may repeat what the client sent
MOST_FAULTS = 50  # in `errors`


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the input."""

    message: str
    code: str = "invalid"
    field: str | None = None  # which part of the request to fix

    def body(self) -> dict[str, Any]:
        found = {"code": self.code, "message": self.message[:LONGEST]}
        return {**found, "field": self.field[:LONGEST]} if self.field else found


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client reads it."""

    status: int
    message: str
    code: str = ""  # empty: the status's own
    field: str | None = None  # which part of the request to fix
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    faults: tuple[Fault, ...] = ()  # of bad input: all of them, the first one included

    def body(self) -> dict[str, Any]:
        code = self.code or CODES.get(self.status, "error")
        found: dict[str, Any] = {"error": Fault(self.message, code, self.field).body()}
        if code == CODES[400]:
            faults = self.faults or [Fault(self.message, field=self.field)]
            found["errors"] = [fault.body() for fault in faults]
        return found


def respond(exc: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler for our views: no exception leaves them."""
    problem = problem_of(exc)
    set_rollback()
    response = Response(problem.body(), status=problem.status, headers=problem.headers)
    if problem.status >= 500:
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


INTERNAL = "something went wrong here; it has been logged"
AWAY = "a service behind this one cannot be reached; try again"
# SQLSTATE: the connection fails, the server accepts no writes, lacks resources, or is shutting down
UNAVAILABLE = ("08", "25006", "53", "57P")

_OTHERS: list[tuple[Any, int, str]] = [
    (RequestDataTooBig, 413, "the body is bigger than this site takes"),
    (Http404, 404, "there is no such thing"),
    (PermissionDenied, 403, "you may not do that"),
    ((SuspiciousOperation, BadRequest, UnreadablePostError), 400, "the request cannot be read"),
]


def _of_kernel(exc: KernelError) -> Problem:
    match exc:
        case InputTooLargeError():
            return Problem(413, str(exc), field=exc.field)
        case InvalidInputError():
            return Problem(400, str(exc), field=exc.field)
        case NotFoundError():
            return Problem(404, str(exc), field=exc.field)
        case ForbiddenError():
            return Problem(403, str(exc))
        case RateLimitedError():
            return Problem(429, str(exc), headers={"Retry-After": str(math.ceil(exc.retry_after or 1))})
        case ConflictError():
            return Problem(409, str(exc), exc.code)
        case _:
            return Problem(500, INTERNAL)


def _of_drf(exc: exceptions.APIException) -> Problem:
    headers = {}
    if challenge := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    code = "invalid_json" if isinstance(exc, exceptions.ParseError) else ""
    faults = tuple(islice(_faults(exc.detail), MOST_FAULTS))
    return Problem(exc.status_code, faults[0].message, code, faults[0].field, headers, faults)


def _faults(detail: Any, place: str = "") -> Iterator[Fault]:
    """All faults of a (nested) validation error, in order."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            whole = key in ("non_field_errors", "__all__")
            yield from _faults(inner, place if whole else f"{place}.{key}".lstrip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _faults(inner, place)
    else:
        yield Fault(str(detail), getattr(detail, "code", "invalid"), place or None)


def _report(exc: Exception, request: Any, response: Response) -> None:
    """As Django does for an exception that leaves a view: a log line with the traceback, and the signal that error
    monitors listen to."""
    got_request_exception.send(sender=None, request=request)
    log_response("%s: %s", type(exc).__name__, request.path, response=response, request=request, exception=exc)
