"""Requests to people: opened by the lease holder, answered once by whoever comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from ravi_django.kernel import ConflictError, NotFoundError
from ravi_django.models import HumanRequest, Run
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.asking import present
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.queue import stamp
from ravi_django.runtime.store.touching import touch


def open_request(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, request: HumanRequest
) -> int:
    """Write a request with the journal row that announces it, in one commit."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        stamp(request).save(force_insert=True)
        return first


def answer_request(request_id: UUID | str, answer: dict[str, Any], *, by: Any, version: int | None = None) -> UUID:
    """Answer a pending request: the first answer wins. The answer and the run's wake-up are one commit; inside a
    caller's transaction the wake-up follows it. Returns the run's id.

    Raises NotFoundError, and ConflictError when it is answered, closed, changed since `version`, or when it is too
    early.
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
        Run.objects.select_for_update().filter(id=request.run_id).values_list("id").first()  # runs first
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


def _why_not(request_id: UUID | str) -> str:
    request = HumanRequest.objects.select_related("answered_by").get(id=request_id)
    if request.status == HumanRequest.Status.PENDING:
        return f"request {request.id} has changed since: it is at version {request.version} now; read it again"
    who = f" by {request.answered_by}" if request.answered_by else ""
    return f"request {request.id} is {request.status} already{who}"
