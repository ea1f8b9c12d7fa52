"""The task board of a conversation."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from ravi_django.api.base import ApiView
from ravi_django.api.lookup import find_session
from ravi_django.api.openapi import documented
from ravi_django.api.pagination import Pages, paged
from ravi_django.runtime.teams import board
from ravi_django.services import shapes


class BoardView(ApiView):
    pagination_class = Pages
    ordering = "-id"

    @documented("sessions_board", ok={200: shapes.BoardTaskSerializer(many=True)}, errors=[400, 404])
    def get(self, request: Any, id: UUID) -> Response:
        """The tasks that the conversation's agents have set themselves, newest first.

        A spawned run's session shows the board of the conversation that it belongs to.
        """
        thread = board.thread_of(find_session(request, id))
        return paged(self, request, find_session(request, thread.id).board.all(), shapes.BoardTaskSerializer)
