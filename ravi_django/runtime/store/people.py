"""Requests to people: opened by the lease holder, answered once by whoever comes first, or closed when nobody did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from ravi_django.kernel import ConflictError, NotFoundError
from ravi_django.models import TERMINAL, HumanRequest, Run
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.asking import NotDue, present
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.queue import stamp
from ravi_django.runtime.store.touching import touch


class TooManyRequests(Exception):
    """The run has made as many requests of this kind, through this tool, as it may."""


def request_shown(request: HumanRequest) -> dict[str, Any]:
    """What whoever watches the run is told of it."""
    return {
        "id": str(request.id),
        "kind": str(request.kind),
        "text": request.text,
        "choices": request.choices,
        "tool": request.tool,
        "arguments": request.arguments,
        "details": request.details,
        "expires_at": None if request.expires_at is None else request.expires_at.isoformat(),
    }


def open_request(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    request: HumanRequest,
    most: int | None = None,
) -> int:
    """Write a request with the journal rows that announce it, in one commit.

    Raises TooManyRequests when the run has `most` of its kind and tool already, whatever has become of those.
    """
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)  # holds the run's row: of two requests at once one is counted first
        same = HumanRequest.objects.filter(run_id=lease.run_id, kind=request.kind, tool=request.tool)
        if most is not None and same.count() >= most:
            raise TooManyRequests
        stamp(request).save(force_insert=True)
        return first


def expire_request(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, request_id: UUID) -> int:
    """Record that nobody answered in time, and close the request. Raises NotDue when somebody has, or when by the
    database's clock there is time left."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        request = HumanRequest.objects.select_for_update().get(id=request_id)
        if request.status != HumanRequest.Status.PENDING:
            raise NotDue(None)
        now = present()
        if request.expires_at is None or now < request.expires_at:  # our clock is ahead: look again, but not at once
            raise NotDue(request.expires_at and max(request.expires_at, now + timedelta(milliseconds=50)))
        HumanRequest.objects.filter(id=request_id).update(
            status=HumanRequest.Status.EXPIRED, answered_at=clock.now(), version=F("version") + 1
        )
        return first


def answer_request(request_id: UUID | str, answer: dict[str, Any], *, by: Any, version: int | None = None) -> UUID:
    """Answer a pending request: the first answer wins. The answer and the run's wake-up are one commit; inside a
    caller's transaction the wake-up follows it. Returns the run's id.

    Raises NotFoundError, and ConflictError when it is answered, closed, changed since `version`, when it is too early
    or too late, and when the run has ended.
    """
    inside = connection.in_atomic_block
    with transaction.atomic():
        request = HumanRequest.objects.select_related("answered_by").filter(id=request_id).first()
        if request is None:
            raise NotFoundError(f"there is no request {request_id}")
        if request.not_before is not None and present() < request.not_before:
            raise ConflictError(
                f"request {request.id} can be answered from {request.not_before:%H:%M:%S} UTC on: until then the "
                "worker that began it may still be at it"
            )
        status = Run.objects.select_for_update(no_key=True).values_list("status", flat=True).get(id=request.run_id)
        if request.status == HumanRequest.Status.PENDING:
            _check_in_time(request, status)
        pending = HumanRequest.objects.filter(
            id=request.id, status=HumanRequest.Status.PENDING, version=request.version if version is None else version
        )
        if not pending.update(
            status=HumanRequest.Status.ANSWERED,
            answer=answer,
            answered_by=by,
            answered_at=clock.now(),
            version=F("version") + 1,
            woke=not inside,
        ):
            raise ConflictError(_why_not(request_id))
        if not inside:
            touch([request.run_id])
    run_id: UUID = request.run_id
    return run_id


def _check_in_time(request: HumanRequest, run_status: str) -> None:
    if run_status in TERMINAL:
        raise ConflictError(f"run {request.run_id} is {run_status} already; nobody would read the answer")
    if request.expires_at is not None and request.expires_at <= present():
        raise ConflictError(f"request {request.id} expired at {request.expires_at:%Y-%m-%d %H:%M:%S} UTC")


def _why_not(request_id: UUID | str) -> str:
    request = HumanRequest.objects.select_related("answered_by").get(id=request_id)
    if request.status == HumanRequest.Status.PENDING:
        return f"request {request.id} has changed since: it is at version {request.version} now; read it again"
    who = f" by {request.answered_by}" if request.answered_by else ""
    return f"request {request.id} is {request.status} already{who}"
