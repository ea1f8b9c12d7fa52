"""Runs: submit, list, read, look into, cancel, retry, fork, signal."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from rest_framework import status
from rest_framework.response import Response

from ravi_django import access, limits
from ravi_django.api.base import ApiView
from ravi_django.api.lookup import find_run
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.pagination import Pages, paged
from ravi_django.kernel import AgentId, InvalidInputError, Priority
from ravi_django.models import Run, Session, Status
from ravi_django.runtime.journal.entries import internalize, sizes_outside
from ravi_django.runtime.lifecycle.cancel import cancel_for
from ravi_django.runtime.lifecycle.fork import fork_once
from ravi_django.runtime.lifecycle.retry import retry
from ravi_django.runtime.people import site_rules
from ravi_django.runtime.people.signal_answers import send as send_signal
from ravi_django.runtime.runs.submit import submit_once
from ravi_django.services import shapes

FILTERS = [
    parameter("status", "Only runs in this status.", enum=list(Status.values)),
    parameter("session", "Only runs of this session.", kind=UUID),
    parameter("agent", "Only runs of this agent, type/key."),
]


class RunsView(ApiView):
    limit = "submit"
    pagination_class = Pages
    ordering = "-id"

    @documented("runs_list", ok={200: shapes.RunSerializer(many=True)}, errors=[400], parameters=FILTERS)
    def get(self, request: Any) -> Response:
        """One's runs, newest first. Of an output its first 1,000 characters; `runs/{id}/` has all of it."""
        rows = Run.objects.for_user(request.user).filter(**_filters(request.query_params))
        return paged(self, request, shapes.RunRowSerializer.read(rows), shapes.RunRowSerializer)

    @documented(
        "runs_create",
        request=shapes.RunRequestSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any) -> Response:
        """Start a run.

        201 with the run; 200 with the first run when the idempotency key was used before with the same body, 409 when
        it was used with another one. Without a session a new one is made.
        """
        given = shapes.RunRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        return start(request.user, **given.validated_data)


def start(user: Any, *, agent: AgentId, **options: Any) -> Response:
    """Submit, and answer with the run."""
    if options.get("session"):
        limits.check_queued(user)
    if "priority" in options:
        access.check_priority(user, Priority[options["priority"].upper()])
    tenant = "" if options.get("session") else site_rules.tenant_for(user)  # else the session's
    session = options.get("session")
    find = partial(access.find, user, session_id=session.id if isinstance(session, Session) else session)
    run, created = submit_once(agent, options.pop("input"), user=user, tenant=tenant, find=find, **options)
    shown = shapes.RunSerializer(run).data
    return Response(shown, status=status.HTTP_201_CREATED if created else status.HTTP_200_OK)


class RunView(ApiView):
    @documented("runs_read", ok={200: shapes.RunDetailSerializer}, errors=[404])
    def get(self, request: Any, id: UUID) -> Response:
        """One run."""
        return Response(shapes.RunDetailSerializer(find_run(request, id)).data)


class JournalView(ApiView):
    pagination_class = Pages
    ordering = "seq"
    weighs = ("request", "result")

    @documented("runs_journal", ok={200: shapes.EntrySerializer(many=True)}, errors=[400, 403, 404])
    def get(self, request: Any, id: UUID) -> Response:
        """What the run did, in the order it was recorded. Of a tool that is visible to staff alone its owner reads
        neither arguments nor results."""
        run = find_run(request, id)
        access.check_journal(request.user, run)
        rows = run.journal.all()
        return paged(self, request, rows, shapes.EntrySerializer, prepare=internalize, sizes=sizes_outside)


class CancelView(ApiView):
    @documented(
        "runs_cancel",
        request=shapes.CancelSerializer,
        ok={202: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Ask for the run's cancellation.

        One that waits ends at once, one that works at its next step; 409 when it has ended already.
        """
        given = shapes.CancelSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        run = find_run(request, id)
        cancel_for(request.user, run.id, given.validated_data.get("reason", ""))
        run.refresh_from_db()
        return Response(shapes.RunSerializer(run).data, status=status.HTTP_202_ACCEPTED)


class RetryView(ApiView):
    limit = "submit"

    @documented(
        "runs_retry",
        request=shapes.EmptySerializer,
        ok={202: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Let a failed or blocked run go on.

        What it has recorded stays, what failed it is made anew. 409 in any other state, for a child that failed, after
        the run's deadline, and when its journal was pruned or its owner deleted.
        """
        shapes.EmptySerializer(data=request.data).is_valid(raise_exception=True)
        found = find_run(request, id)
        access.continue_run(request.user, found)
        run = retry(found.id)
        return Response(shapes.RunSerializer(run).data, status=status.HTTP_202_ACCEPTED)


class ForkView(ApiView):
    limit = "fork"

    @documented(
        "runs_fork",
        request=shapes.ForkSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Start a new run, in a new session, that shares this one's past and goes its own way from there.

        409 when the journal was pruned or the run's owner deleted. 200 with the first fork when the idempotency key was
        used for this run before with the same body, 409 when it was used with another one.
        """
        source = find_run(request, id)
        given = shapes.ForkSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        access.find(request.user, source.agent, None if source.parent_id else source.session_id)
        run, created = fork_once(source.id, user=request.user, **given.validated_data)
        shown = shapes.RunSerializer(run).data
        return Response(shown, status=status.HTTP_201_CREATED if created else status.HTTP_200_OK)


class SignalsView(ApiView):
    limit = "signals"

    @documented(
        "runs_signal",
        request=shapes.SignalSerializer,
        ok={202: shapes.RunSerializer},
        errors=[400, 403, 404, 409, 413, 415],
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Send the run a signal: what its agent waits for by name, now or later.

        403 for a name that is none of the agent's `public_signals`, but for users who have `ravi.signal_run`. By the
        name of a question that the run has asked (`human_reply:…`) the payload is an answer to it, a text or
        `{"action", "text"}`: 403 for users who may not answer, 409 when it was answered before. 409 when the run has
        ended. A repeat of an idempotency key is no second signal; 409 when the key was used for this run before with
        another body.
        """
        found = find_run(request, id)
        given = shapes.SignalSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        send_signal(found, by=request.user, **given.validated_data)
        return Response(shapes.RunSerializer(find_run(request, id)).data, status=status.HTTP_202_ACCEPTED)


def _filters(given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "status" in given:
        if given["status"] not in Status.values:
            raise InvalidInputError(f"status must be one of {', '.join(Status.values)}", field="status")
        found["status"] = given["status"]
    if "session" in given:
        try:
            found["session_id"] = UUID(given["session"])
        except ValueError:
            raise InvalidInputError(f"session must be a UUID, not {given['session']!r}", field="session") from None
    if "agent" in given:
        try:
            found["agent"] = str(AgentId.parse(given["agent"]))
        except InvalidInputError as error:
            raise InvalidInputError(str(error), field="agent") from None
    return found
