"""Tickets, with which a program with a token opens a websocket or an event stream."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ravi_django.api import auth
from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented
from ravi_django.services import shapes, tickets


class TicketsView(ApiView):
    limit = "tickets"

    @documented("tickets_create", request=shapes.EmptySerializer, ok={201: shapes.TicketSerializer})
    def post(self, request: Any) -> Response:
        """Create a ticket, which opens one websocket, or the event stream of one run and that stream again."""
        self.given(shapes.EmptySerializer)
        ticket, expires_at = tickets.issue(request.user, auth.credential_of(request))
        return Response(shapes.TicketSerializer({"ticket": ticket, "expires_at": expires_at}).data, status=201)
