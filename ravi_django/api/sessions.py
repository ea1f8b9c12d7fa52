"""Sessions: conversations and their messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.decorators import action
from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.memory.transcript import OURS
from ravi_django.api.base import ApiViewSet
from ravi_django.api.filters import SessionFilters
from ravi_django.api.openapi import documented
from ravi_django.api.runs import start
from ravi_django.api.turns import with_every_result
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.models import Session
from ravi_django.runtime.lifecycle import erasing
from ravi_django.runtime.people import site_rules
from ravi_django.runtime.runs import sessions
from ravi_django.runtime.teams import board
from ravi_django.services import shapes


class SessionViewSet(ApiViewSet):
    queryset = Session.objects.all()
    serializer_class = shapes.SessionSerializer
    filterset_class = SessionFilters
    limit = "sessions"

    @documented("sessions_list", ok={200: shapes.SessionSerializer(many=True)}, errors=[400, 403])
    def list(self, request: Any) -> Response:
        """The user's conversations, newest first, without those between agents."""
        return self.page(self.filter_queryset(self.get_queryset().filter(parent_session=None)))

    @documented(
        "sessions_create", request=shapes.SessionRequestSerializer, ok={201: shapes.SessionSerializer}, errors=[404]
    )
    def create(self, request: Any) -> Response:
        """Create a conversation. Its messages go to the given agent."""
        given = self.given(shapes.SessionRequestSerializer)
        agent = given.get("agent")
        if agent is not None:
            access.find(request.user, agent)
        tenant = site_rules.tenant_for(request.user)
        row = Session(owner=request.user, tenant=tenant, title=given.get("title", ""), agent=str(agent or ""))
        sessions.create_session(row).refresh_from_db()
        return self.shown(row, 201)

    @documented("sessions_read", ok={200: shapes.SessionSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One conversation."""
        return self.shown(self.get_object())

    @documented(
        "sessions_rename", request=shapes.SessionRenameSerializer, ok={200: shapes.SessionSerializer}, errors=[404]
    )
    def partial_update(self, request: Any, id: UUID) -> Response:
        """Change the title of a conversation."""
        given = self.given(shapes.SessionRenameSerializer)
        row = self.get_object()
        row.title = given["title"]
        row.save(update_fields=["title", "updated_at"])
        return self.shown(row)

    @documented("sessions_delete", ok={204: None}, errors=[403, 404, 409])
    def destroy(self, request: Any, id: UUID) -> Response:
        """Delete a conversation with its runs and their rows, except audit records. It is hidden at once; the next
        sweeps delete the rows.

        409 while one of its runs, or a child run, has not ended: cancel it first. 409 for the session of a child run.
        """
        erasing.delete_session(self.get_object().id)
        return Response(status=204)

    @documented("sessions_board", ok={200: shapes.BoardTaskSerializer(many=True)}, errors=[400, 404])
    @action(detail=True, serializer_class=shapes.BoardTaskSerializer, filterset_class=None)
    def board(self, request: Any, id: UUID) -> Response:
        """The tasks of the conversation's agents, newest first.

        A child run's session shows the board of the conversation that it belongs to.
        """
        self.kwargs["id"] = board.thread_of(self.get_object()).id
        return self.page(self.get_object().board.all())

    @documented("sessions_messages", ok={200: shapes.TurnSerializer(many=True)}, errors=[400, 404])
    @action(
        detail=True,
        serializer_class=shapes.TurnSerializer,
        filterset_class=None,
        limit="submit",
        ordering="position",
        weighs=("content", "entry__request", "entry__result"),
    )
    def messages(self, request: Any, id: UUID) -> Response:
        """The messages, oldest first. A tool call without a result is followed by a result that says so."""
        turns = self.get_object().turns.filter(keeps=None).select_related("entry")
        return self.page(turns.exclude(name__startswith=OURS), with_every_result)  # no summaries and corrections

    @documented(
        "sessions_say",
        request=shapes.MessageRequestSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[404, 409],
    )
    @messages.mapping.post  # type: ignore[untyped-decorator]
    def say(self, request: Any, id: UUID) -> Response:
        """Send a message: starts a run of the agent, by default of the session's last agent. While the agent is at
        work, `on_busy` decides: 200 with the run at work for "steer", 409 for "reject".

        200 with the first run if the idempotency key was used in this session before with the same body, 409 if it was
        used with another one.
        """
        given = self.given(shapes.MessageRequestSerializer)
        session = self.get_object()
        agent, text = given.get("agent"), given["text"]
        key, said = given.get("idempotency_key"), {"agent": str(agent or ""), "text": text}
        if agent is None:
            if not session.agent:
                raise InvalidInputError("this session has no agent yet: name one", field="agent")
            agent = AgentId.parse(session.agent)
        try:
            options = {"idempotency_key": key, "said": said, "on_busy": given.get("on_busy")}
            return start(request.user, agent=agent, input=text, session=session, **options)
        except InvalidInputError as error:
            error.field = "text" if error.field == "input" else error.field
            raise
