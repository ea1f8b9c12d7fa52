"""Requests to people: list, read, answer, reassign."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.response import Response

from ravi_django.api.base import ApiViewSet
from ravi_django.api.filters import RequestFilters
from ravi_django.api.openapi import documented
from ravi_django.models import HumanRequest
from ravi_django.people import answers, escalation, rights
from ravi_django.services.request_shapes import (
    NOT_SHOWN,
    AnswerSerializer,
    ReassignSerializer,
    RequestDetailSerializer,
    RequestSerializer,
    marked,
)


class RequestViewSet(ApiViewSet):
    queryset = HumanRequest.objects.all()
    serializer_class: type[RequestSerializer] = RequestDetailSerializer
    filterset_class = RequestFilters
    weighs = ("text", "arguments", "details", "answer")

    def get_queryset(self) -> Any:
        rows = rights.visible(self.request.user).select_related("run", "answered_by")
        return rows.defer(*(f"run__{name}" for name in NOT_SHOWN))

    def response_of(self, row: HumanRequest, status: int = 200) -> Response:
        return super().response_of(marked([row], self.request.user)[0], status)

    @documented("requests_list", ok={200: RequestSerializer(many=True)}, errors=[400, 403])
    def list(self, request: Any) -> Response:
        """Requests to people, newest first.

        Those that the user may answer and, to read, those of the user's runs.
        """
        self.serializer_class = RequestSerializer
        return self.page(self.filter_queryset(self.get_queryset()), partial(marked, user=request.user))

    @documented("requests_read", ok={200: RequestDetailSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One request."""
        return self.response_of(self.get_object())

    @documented("requests_answer", request=AnswerSerializer, ok={200: RequestDetailSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"])
    def answer(self, request: Any, id: UUID) -> Response:
        """Answer a request: the first answer counts.

        409 if it was answered, closed, changed or has expired; 403 for users who may only read it. The answer is
        recorded under the authenticated user.
        """
        row = self.get_object()
        answers.answer(row, by=request.user, **self.validated(AnswerSerializer))
        return self.response_of(answers.find(row))

    @documented("requests_reassign", request=ReassignSerializer, ok={200: RequestDetailSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"])
    def reassign(self, request: Any, id: UUID) -> Response:
        """Send a request to another address, for the remaining time; the later addresses stay.

        For users who may answer it, and for users with `ravi.change_humanrequest` who may see it, also by
        `ravi.view_humanrequest`. 409 if it was answered, closed or changed; 403 for users who may only read it. The
        user may no longer see it afterwards.
        """
        escalation.check(request.user, answers.find(id))  # before the body: its faults are for users who see the row
        row = answers.reassign(id, by=request.user, **self.validated(ReassignSerializer))
        return self.response_of(answers.find(row))
