"""People's inbox: what is asked of them, read and answered."""

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
from ravi_django.runtime.people import answers, escalation, rights
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

    def shown(self, row: HumanRequest, status: int = 200) -> Response:
        return super().shown(marked([row], self.request.user)[0], status)

    @documented("requests_list", ok={200: RequestSerializer(many=True)}, errors=[400, 403])
    def list(self, request: Any) -> Response:
        """What people are asked, newest first.

        What the user may answer, and, to read, what their own runs ask of others.
        """
        self.serializer_class = RequestSerializer
        return self.page(self.filter_queryset(self.get_queryset()), partial(marked, user=request.user))

    @documented("requests_read", ok={200: RequestDetailSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One request."""
        return self.shown(self.get_object())

    @documented("requests_answer", request=AnswerSerializer, ok={200: RequestDetailSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"])
    def answer(self, request: Any, id: UUID) -> Response:
        """Decide on it: the first answer wins.

        409 when it was answered, closed, expired or changed before, 403 for who may only read it. Who has decided is
        the authenticated user, whatever the body says.
        """
        row = self.get_object()
        answers.answer(row, by=request.user, **self.given(AnswerSerializer))
        return self.shown(answers.find(row))

    @documented("requests_reassign", request=ReassignSerializer, ok={200: RequestDetailSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"])
    def reassign(self, request: Any, id: UUID) -> Response:
        """Ask somebody else instead, in the time that is left; the later addresses stay.

        For who may answer it, and for who holds `ravi.change_humanrequest` and may see it, by `ravi.view_humanrequest`
        too.
        409 when it was answered, closed or changed before, 403 for who may only read it. Who passes it on may not see
        it any more.
        """
        escalation.check(request.user, answers.find(id))  # first: what is wrong with a body is for who may see the row
        row = answers.reassign(id, by=request.user, **self.given(ReassignSerializer))
        return self.shown(answers.find(row))
