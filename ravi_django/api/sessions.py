"""Sessions: conversations, and what was said in them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import status
from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.memory.transcript import OURS
from ravi_django.api.base import ApiView
from ravi_django.api.lookup import find_session
from ravi_django.api.openapi import documented
from ravi_django.api.pagination import Pages, paged
from ravi_django.api.runs import start
from ravi_django.api.turns import with_every_result
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.models import Session
from ravi_django.runtime.lifecycle import erasing
from ravi_django.runtime.people import site_rules
from ravi_django.runtime.runs import sessions
from ravi_django.services import shapes


class SessionsView(ApiView):
    limit = "sessions"
    pagination_class = Pages
    ordering = "-id"

    @documented("sessions_list", ok={200: shapes.SessionSerializer(many=True)}, errors=[400])
    def get(self, request: Any) -> Response:
        """One's conversations, newest first; those between agents are left out."""
        rows = Session.objects.for_user(request.user).filter(parent_session=None)
        return paged(self, request, rows, shapes.SessionSerializer)

    @documented(
        "sessions_create",
        request=shapes.SessionRequestSerializer,
        ok={201: shapes.SessionSerializer},
        errors=[400, 403, 404, 413, 415],
    )
    def post(self, request: Any) -> Response:
        """Begin a conversation; with an agent, its messages go there."""
        given = shapes.SessionRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        agent = given.validated_data.get("agent")
        if agent is not None:
            access.find(request.user, agent)
        title, tenant = given.validated_data.get("title", ""), site_rules.tenant_for(request.user)
        row = Session(owner=request.user, tenant=tenant, title=title, agent=str(agent or ""))
        sessions.create_session(row).refresh_from_db()
        return Response(shapes.SessionSerializer(row).data, status=status.HTTP_201_CREATED)


class SessionView(ApiView):
    limit = "sessions"

    @documented("sessions_read", ok={200: shapes.SessionSerializer}, errors=[404])
    def get(self, request: Any, id: UUID) -> Response:
        """One conversation."""
        return Response(shapes.SessionSerializer(find_session(request, id)).data)

    @documented(
        "sessions_rename",
        request=shapes.SessionRenameSerializer,
        ok={200: shapes.SessionSerializer},
        errors=[400, 403, 404, 413, 415],
    )
    def patch(self, request: Any, id: UUID) -> Response:
        """Give a conversation another title."""
        given = shapes.SessionRenameSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        row = find_session(request, id)
        row.title = given.validated_data["title"]
        row.save(update_fields=["title", "updated_at"])
        return Response(shapes.SessionSerializer(row).data)

    @documented("sessions_delete", ok={204: None}, errors=[403, 404, 409])
    def delete(self, request: Any, id: UUID) -> Response:
        """Delete a conversation with its runs and all that they have written, but for the audit records. It is hidden
        at once; the rows go in the next sweeps.

        409 while a run of it, or of a child run, has not ended: cancel it first. 409 for the session of a child run.
        """
        erasing.delete_session(find_session(request, id).id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class MessagesView(ApiView):
    limit = "submit"
    pagination_class = Pages
    ordering = "position"
    weighs = ("content",)

    @documented("sessions_messages", ok={200: shapes.TurnSerializer(many=True)}, errors=[400, 404])
    def get(self, request: Any, id: UUID) -> Response:
        """What was said, oldest first. A tool call that has no result comes with one that says so."""
        turns = find_session(request, id).turns
        said = turns.filter(keeps=None).exclude(name__startswith=OURS)  # summaries and corrections were not said
        return paged(self, request, said, shapes.TurnSerializer, with_every_result)

    @documented(
        "sessions_say",
        request=shapes.MessageRequestSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Say something: starts a run of the agent, by default the one last spoken to.

        200 with the first run when the idempotency key was used in this session before with the same body, 409 when it
        was used with another one.
        """
        given = shapes.MessageRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        session = find_session(request, id)
        agent, text = given.validated_data.get("agent"), given.validated_data["text"]
        key, said = given.validated_data.get("idempotency_key"), {"agent": str(agent or ""), "text": text}
        if agent is None:
            if not session.agent:
                raise InvalidInputError("nobody was spoken to in this session yet: name the agent", field="agent")
            agent = AgentId.parse(session.agent)
        try:
            return start(request.user, agent=agent, input=text, session=session, idempotency_key=key, said=said)
        except InvalidInputError as error:
            error.field = "text" if error.field == "input" else error.field
            raise
