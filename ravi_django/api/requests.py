"""People's inbox: what is asked of them, read and answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.pagination import Pages, paged
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.models import HumanRequest
from ravi_django.runtime.people import answers, escalation, rights
from ravi_django.services.request_shapes import (
    NOT_SHOWN,
    AnswerSerializer,
    ReassignSerializer,
    RequestDetailSerializer,
    RequestSerializer,
    marked,
)

ALL = "all"
STATUSES = [*HumanRequest.Status.values, ALL]
FILTERS = [
    parameter("status", "Only requests in this status; all when absent.", enum=STATUSES),
    parameter("kind", "Only requests of this kind.", enum=list(HumanRequest.Kind.values)),
    parameter("tool", "Only those about calls of this tool, or asked by it."),
    parameter("agent", "Only what this agent, type/key, asks."),
    parameter("run", "Only what this run asks.", kind=UUID),
]


class RequestsView(ApiView):
    pagination_class = Pages
    ordering = "-id"
    weighs = ("text", "arguments", "details", "answer")

    @documented("requests_list", ok={200: RequestSerializer(many=True)}, errors=[400], parameters=FILTERS)
    def get(self, request: Any) -> Response:
        """What people are asked, newest first.

        What the user may answer, and, to read, what their own runs ask of others.
        """
        rows = _rows(request).filter(**_filters(request.query_params))
        return paged(self, request, rows, RequestSerializer, partial(marked, user=request.user))


class RequestView(ApiView):
    @documented("requests_read", ok={200: RequestDetailSerializer}, errors=[404])
    def get(self, request: Any, id: UUID) -> Response:
        """One request."""
        return _shown(find_request(request, id), request.user)


class AnswerView(ApiView):
    @documented(
        "requests_answer",
        request=AnswerSerializer,
        ok={200: RequestDetailSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Decide on it: the first answer wins.

        409 when it was answered, closed, expired or changed before, 403 for who may only read it. Who has decided is
        the authenticated user, whatever the body says.
        """
        row = find_request(request, id)
        answers.answer(row, by=request.user, **_given(AnswerSerializer(data=request.data)))
        return _shown(answers.find(row), request.user)


class ReassignView(ApiView):
    @documented(
        "requests_reassign",
        request=ReassignSerializer,
        ok={200: RequestDetailSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Ask somebody else instead, in the time that is left; the later addresses stay.

        For who may answer it, and for who holds `ravi.change_humanrequest` and may see it, by `ravi.view_humanrequest`
        too.
        409 when it was answered, closed or changed before, 403 for who may only read it. Who passes it on may not see
        it any more.
        """
        escalation.check(request.user, answers.find(id))  # first: what is wrong with a body is for who may see the row
        row = answers.reassign(id, by=request.user, **_given(ReassignSerializer(data=request.data)))
        return _shown(answers.find(row), request.user)


def find_request(request: Any, id: UUID) -> HumanRequest:
    """One that the user may see. Raises NotFound."""
    row: HumanRequest | None = _rows(request).filter(id=id).first()
    if row is None:
        raise NotFound(f"there is no request {id} for you")
    return row


def _rows(request: Any) -> Any:
    rows = rights.visible(request.user).select_related("run", "answered_by")
    return rows.defer(*(f"run__{name}" for name in NOT_SHOWN))


def _shown(row: HumanRequest, user: Any) -> Response:
    return Response(RequestDetailSerializer(marked([row], user)[0]).data)


def _given(serializer: Any) -> dict[str, Any]:
    """What the body says; null stands for absent."""
    serializer.is_valid(raise_exception=True)
    return {name: value for name, value in serializer.validated_data.items() if value is not None}


def _filters(given: Any) -> dict[str, Any]:
    return {column: value for name, read in _READ.items() if name in given for column, value in read(given[name])}


def _status(given: str) -> list[tuple[str, Any]]:
    found = _one_of("status", STATUSES, given)
    return [] if given == ALL else found


def _one_of(name: str, known: list[str], given: str) -> list[tuple[str, Any]]:
    if given not in known:
        raise InvalidInputError(f"{name} must be one of {', '.join(known)}", field=name)
    return [(name, given)]


def _tool(given: str) -> list[tuple[str, Any]]:
    if "\0" in given:
        raise InvalidInputError("tool has a NUL character; no tool's name has", field="tool")
    return [("tool", given)]


def _agent(given: str) -> list[tuple[str, Any]]:
    try:
        return [("run__agent", str(AgentId.parse(given)))]
    except InvalidInputError as error:
        raise InvalidInputError(str(error), field="agent") from None


def _run(given: str) -> list[tuple[str, Any]]:
    try:
        return [("run_id", UUID(given))]
    except ValueError:
        raise InvalidInputError(f"run must be a UUID, not {given!r}", field="run") from None


_READ: dict[str, Callable[[str], list[tuple[str, Any]]]] = {
    "status": _status,
    "kind": partial(_one_of, "kind", list(HumanRequest.Kind.values)),
    "tool": _tool,
    "agent": _agent,
    "run": _run,
}
