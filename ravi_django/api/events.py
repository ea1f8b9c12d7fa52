"""A run tree's events over HTTP: as a stream, or as pages; and the tickets that open streams and sockets."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpResponse, StreamingHttpResponse
from rest_framework.exceptions import NotAcceptable
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from ravi_django import limits
from ravi_django.api import base, filters, sse
from ravi_django.api.base import ApiView, ApiViewSet, non_atomic
from ravi_django.api.filters import limit_of
from ravi_django.api.openapi import ADDRESSED, COUNT, documented, parameter
from ravi_django.kernel import AgentId, InvalidInputError, TopicId
from ravi_django.kernel.identity import DEFAULT_NAMESPACE
from ravi_django.live.streams import hidden
from ravi_django.live.streams.frames import STREAM
from ravi_django.live.streams.live import check, live
from ravi_django.live.streams.reading import EVERY, PAGE, PROGRESS, Only, has_ended, on_this_thread, page, run_of_topic
from ravi_django.models import Run, Ticket
from ravi_django.services import shapes
from ravi_django.services.open_streams import OpenStream, issue_ticket, keep_tickets

SEQ = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RUNSERVER = "WSGIServer/"  # Django's development server, the only WSGI server with a thread for each request
NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}  # of an event
PAGING = [
    parameter("after", "Only events with a higher number.", kind=NUMBER),
    parameter("limit", "Events a page, for JSON only: at most 500, the default.", kind=COUNT),
]


class EventStreamRenderer(BaseRenderer):
    """Lets a client choose `text/event-stream`; the stream itself is not rendered."""

    media_type = "text/event-stream"
    format = "sse"
    charset = None


@non_atomic  # no transaction stays open behind a stream
class EventViewSet(ApiViewSet):
    queryset = Run.objects.all()
    renderer_classes = [EventStreamRenderer, JSONRenderer]

    def get_authenticators(self) -> list[Any]:
        return [base.TicketAuthentication(), *super().get_authenticators()]

    @property
    def run_id(self) -> UUID:
        """The run in the address. Raises InvalidInputError."""
        named: UUID | None = self.kwargs.get("id")
        return named or run_of_topic(TopicId(**self.kwargs), self.request.query_params.get("run"))

    @documented(
        "runs_events",
        ok={(200, "text/event-stream"): str, (200, "application/json"): shapes.FramePageSerializer, 204: None},
        errors=[400, 404],
        parameters=[
            *PAGING,
            parameter("Last-Event-ID", "As `after`, and overrides it.", kind=NUMBER, where="header"),
            parameter("agent", "Only events of this agent's runs, an address.", kind=ADDRESSED),
        ],
    )
    def retrieve(self, request: Any, id: UUID) -> Any:
        """The events of the run's whole tree.

        Server-sent events, each with its number as id, its type as event and the frame as one line of data, until
        stream.done; comments keep the connection open. With a Last-Event-ID at the end of an ended stream 204: an
        EventSource then stops. A `ticket` opens the events of one run, and opens them again until 60 s after its last
        connection ended. With `Accept: application/json` one page of the same frames.
        A WSGI server has only the pages: there a stream is a 406.
        """
        agent = request.query_params.get("agent")
        return self._answer(request, Only(agent="" if agent is None else str(AgentId.parse(agent))))

    @documented(
        "topics_events",
        ok={(200, "text/event-stream"): str, (200, "application/json"): shapes.FramePageSerializer, 204: None},
        errors=[400, 404, 501],
        parameters=[
            parameter("type", "The kind of topic.", enum=[STREAM, PROGRESS], where="path", required=True),
            parameter("run", "A run of the tree; pages of `agent.stream` need it.", kind=UUID),
            *PAGING,
        ],
    )
    def topic(self, request: Any, type: str, source: str, namespace: str = DEFAULT_NAMESPACE) -> Any:
        """The events of one topic of a run's tree, as in `runs/{id}/events/`.

        `agent.stream/{agent key}` has the text of one agent, `agent.progress/{run id}` the steps of the whole tree.
        A stream of the former without a run has the text of all runs of the agent that the user may see, from now on,
        without numbers. Without Valkey or Redis it is a 501.
        """
        topic = TopicId(type, source, namespace)
        if type == STREAM and "run" not in request.query_params and request.accepted_renderer.format == "sse":
            check(topic)
            return _stream(request, None, 0, Only(topic=topic))
        return self._answer(request, Only(topic=topic))

    def _answer(self, request: Any, only: Only) -> Any:
        after = _after(request)
        limit = limit_of(request, default=PAGE, most=PAGE)
        self.kwargs["id"] = self.run_id
        run = self.get_object()
        if isinstance(request.accepted_renderer, JSONRenderer):
            whole = hidden.sees(request.user)
            frames, done = page(run.tree_id, after, limit, whole=whole, room=filters.MAX_BYTES)
            upto = frames[-1]["seq"] if frames else after
            return Response({"results": [*filter(only, frames)], "next_after": upto, "done": done})
        return _stream(request, run, after, only)


def _stream(request: Any, run: Run | None, after: int, only: Only) -> HttpResponse | StreamingHttpResponse:
    is_asgi = streams_asgi(
        request, f"send Accept: application/json for {request.get_full_path()}{'' if run else ' with run='}"
    )
    if request.method == "HEAD":
        return HttpResponse(content_type=sse.CONTENT_TYPE, headers=HEADERS)
    if run and request.headers.get("Last-Event-ID") and has_ended(run.tree_id, after):
        return HttpResponse(status=204, headers=HEADERS)  # an EventSource reconnects no more
    open_stream = open_stream_of(request, run, limits.open_one(request.user, "streams"), only)
    if isinstance(request.auth, Ticket):
        open_stream.ticket = request.auth.id
        keep_tickets([open_stream])
    if run is not None:
        stream = sse.stream if is_asgi else sse.stream_for_a_while
        return streaming(stream(run.tree_id, after, open_stream))
    assert only.topic is not None
    body = sse.events(live(only.topic, request.user), open_stream)
    return streaming(body if is_asgi else on_this_thread(body))


def streams_asgi(request: Any, instead: str) -> bool:
    """Whether the server is an ASGI one, whose event loop serves any number of streams. Of the WSGI servers, where each
    stream blocks a worker, only `runserver` may stream. Raises NotAcceptable, which says what to do `instead`."""
    is_asgi = isinstance(request._request, ASGIRequest)
    if not is_asgi and not request.META.get("SERVER_SOFTWARE", "").startswith(RUNSERVER):
        raise NotAcceptable(f"this WSGI server does not stream: {instead}, or use an ASGI server")
    return is_asgi


def open_stream_of(request: Any, run: Run | None, slot: str, only: Only = EVERY) -> OpenStream:
    whole = hidden.sees(request.user)
    return OpenStream(request.user.pk, base.credential_of(request), slot, run, whole=whole, only=only)


def streaming(body: Any) -> StreamingHttpResponse:
    close_connections()
    return StreamingHttpResponse(body, content_type=sse.CONTENT_TYPE, headers=HEADERS)


def close_connections() -> None:
    """Close this thread's connections: Django would keep them open and idle until the answer's end."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _after(request: Any) -> int:
    """A reconnecting EventSource requests its first address again, and sends the last event's number in
    Last-Event-ID."""
    for name, value in (
        ("Last-Event-ID", request.headers.get("Last-Event-ID")),
        ("after", request.query_params.get("after")),
    ):
        if value is None or (value == "" and name != "after"):
            continue
        if not SEQ.match(value):
            raise InvalidInputError(f"{name} must be the number of an event, from 0, not {value!r}", field=name)
        return int(value)
    return 0


class TicketsView(ApiView):
    limit = "tickets"

    @documented("tickets_create", request=shapes.EmptySerializer, ok={201: shapes.TicketSerializer})
    def post(self, request: Any) -> Response:
        """Create a ticket, which opens one websocket, or the event stream of one run and that stream again."""
        self.validated(shapes.EmptySerializer)
        ticket, expires_at = issue_ticket(request.user, base.credential_of(request))
        return Response(shapes.TicketSerializer({"ticket": ticket, "expires_at": expires_at}).data, status=201)
