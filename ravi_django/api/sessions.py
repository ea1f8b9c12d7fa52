"""Sessions: conversations and their messages. Every tool call that a client reads has a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import Q
from rest_framework.decorators import action
from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.memory.transcript import INTERRUPTED, OURS, STOPPED, interrupted
from ravi_django.api.base import ApiViewSet
from ravi_django.api.filters import SessionFilters
from ravi_django.api.openapi import documented
from ravi_django.api.runs import start
from ravi_django.kernel import AgentId, InvalidInputError, Role
from ravi_django.models import TERMINAL, Run, Session, Turn
from ravi_django.models.session import by_agent
from ravi_django.people import site_rules
from ravi_django.runs import sessions
from ravi_django.runs.lifecycle import erasing
from ravi_django.runs.teams import board
from ravi_django.services import shapes

UNDER_WAY = "no result yet: the tool call is under way"
_LOOK_AHEAD = 20  # turns after a page, for the results of its last calls


def with_every_result(page: list[Turn]) -> list[Turn]:
    """The page, with a result after each turn whose calls have none. Nothing is stored: the call may get its result
    later."""
    missing = {turn.pk: calls for turn in page if (calls := _calls(turn))}
    if not missing:
        return page
    last = [caller for turn in _find_results(page, missing) for caller in _look_behind(page, turn, missing)]
    active = Run.objects.exclude(status__in=TERMINAL).filter(id__in={turn.run_id for turn in last})
    working = set(active.values_list("id", flat=True)) if last else set()
    under_way = {turn.pk for turn in last if turn.run_id in working}
    turns = []
    for turn in page:
        turns.append(turn)
        if left := missing.get(turn.pk):
            turns.append(_result(turn, left, UNDER_WAY if turn.pk in under_way else INTERRUPTED))
    return turns


def _look_behind(page: list[Turn], caller: Turn, missing: dict[Any, list[str]]) -> list[Turn]:
    """The last caller of the page, if the turns after the page have no result for it either."""
    behind = Turn.objects.filter(by_agent(caller.by), session_id=caller.session_id, keeps=None).whole()
    newer = behind.filter(position__gt=page[-1].position).order_by("position")[:_LOOK_AHEAD]
    return [turn for turn in _find_results([caller, *newer], missing) if turn.pk == caller.pk]


def _find_results(turns: Iterable[Turn], missing: dict[Any, list[str]]) -> list[Turn]:
    """Remove calls that have a result from `missing`; returns the callers whose results may follow these turns."""
    callers: dict[str, Turn] = {}  # by agent
    for turn in turns:
        if turn.role != Role.TOOL:
            callers.pop(turn.by, None)
            if missing.get(turn.pk):
                callers[turn.by] = turn
        elif turn.by in callers:
            answered = {block.get("call_id") for block in turn.blocks if block.get("type") == "tool_result"}
            calls = missing[callers[turn.by].pk]
            calls[:] = [call for call in calls if call not in answered]
    return [turn for turn in callers.values() if missing[turn.pk]]


def _calls(turn: Turn) -> list[str]:
    if turn.role != Role.ASSISTANT:
        return []
    return [block["call_id"] for block in turn.blocks if block.get("type") == "tool_use"]


def _result(turn: Turn, calls: list[str], text: str) -> Turn:
    (message,) = interrupted(calls, text)
    made = Turn(
        session_id=turn.session_id,
        position=turn.position,
        run_id=turn.run_id,
        role=Role.TOOL,
        content=message.to_json()["content"],
        created_at=turn.created_at,
    )
    made.id_text = f"{turn.position}.results"  # type: ignore[attr-defined]
    return made


class SessionViewSet(ApiViewSet):
    queryset = Session.objects.defer("shared_state")
    serializer_class = shapes.SessionSerializer
    filterset_class = SessionFilters
    limit = "sessions"

    @documented("sessions_list", ok={200: shapes.SessionSerializer(many=True)}, errors=[400, 403])
    def list(self, request: Any) -> Response:
        """The user's conversations, newest first, without those between agents."""
        rows = self.get_queryset().filter(parent_session=None).select_related("owner")
        return self.page(self.filter_queryset(rows))

    @documented(
        "sessions_create", request=shapes.SessionRequestSerializer, ok={201: shapes.SessionSerializer}, errors=[404]
    )
    def create(self, request: Any) -> Response:
        """Create a conversation. Its messages go to the given agent."""
        body = self.validated(shapes.SessionRequestSerializer)
        agent = body.get("agent")
        if agent is not None:
            access.find(request.user, agent)
        tenant = site_rules.tenant_for(request.user)
        row = Session(owner=request.user, tenant=tenant, title=body.get("title", ""), agent=str(agent or ""))
        sessions.create_session(row).refresh_from_db()
        return self.response_of(row, 201)

    @documented("sessions_read", ok={200: shapes.SessionDetailSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One conversation, with the forks of its runs: other versions of its messages."""
        return Response(shapes.SessionDetailSerializer(self.get_object(), context={"request": request}).data)

    @documented(
        "sessions_rename", request=shapes.SessionRenameSerializer, ok={200: shapes.SessionSerializer}, errors=[404]
    )
    def partial_update(self, request: Any, id: UUID) -> Response:
        """Change the title of a conversation."""
        body = self.validated(shapes.SessionRenameSerializer)
        row = self.get_object()
        row.title = body["title"]
        row.save(update_fields=["title"])
        return self.response_of(row)

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
        turns = self.get_object().turns.filter(keeps=None).whole()
        hidden = Q(name__startswith=OURS) & ~Q(name=STOPPED)  # summaries and corrections
        return self.page(turns.exclude(hidden), with_every_result)

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
        body = self.validated(shapes.MessageRequestSerializer)
        session = self.get_object()
        agent, text = body.get("agent"), body["text"]
        key, request_body = body.get("idempotency_key"), {"agent": str(agent or ""), "text": text}
        if agent is None:
            if not session.agent:
                raise InvalidInputError("this session has no agent yet: name one", field="agent")
            agent = AgentId.parse(session.agent)
        try:
            options = {"idempotency_key": key, "message_body": request_body, "on_busy": body.get("on_busy")}
            return start(request.user, agent=agent, input=text, session=session, **options)
        except InvalidInputError as error:
            error.field = "text" if error.field == "input" else error.field
            raise
