"""Others are asked: the time of a step is up, or somebody has addressed a request to somebody else.

The steps' times are laid end to end from the opening on, whoever is skipped: a step that means nobody by then leaves
its time to the one that is asked in its place, and the whole ends when it was said to end. A sweep that comes late asks
the step whose time it is. Where no step is left that means somebody, whoever is asked stays so until the request
expires. The run is not driven for any of it, nor locked: one request's row is, which its version guards.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django.db import transaction
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.runtime import clock, people, requests
from ravi_django.runtime.store.asking import present
from ravi_django.runtime.store.links import forget_links
from ravi_django.runtime.store.people import check_in_time, refuse_changed, refuse_late
from ravi_django.runtime.store.records import log_entry, record, tell
from ravi_django.signals import request_changed


def due_to_escalate(limit: int) -> list[UUID]:
    """Requests whose step has had its time, the longest first; not those that have expired as a whole."""
    waiting = HumanRequest.objects.filter(status=HumanRequest.Status.PENDING, escalates_at__lte=clock.now())
    alive = waiting.filter(Q(expires_at=None) | Q(expires_at__gt=clock.now()))
    return list(alive.order_by("escalates_at", "id").values_list("id", flat=True)[:limit])


def escalate(request_id: UUID | str) -> bool:
    """Ask the next step that means somebody; whether others are asked now."""
    with transaction.atomic():
        request = HumanRequest.objects.select_related("run").get(id=request_id)
        now = present()
        if not _is_due(request, now) or request.run.status in TERMINAL:
            return False
        before = request.to
        found = _next(request, now)
        if found is None:  # nothing that anybody sees: no new version
            HumanRequest.objects.filter(id=request.id, version=request.version).update(escalates_at=None)
            return False
        requests.passes_on(request, "escalated", now)
        requests.place_at(request, *found)
        if not _changed(request, "escalates_at", "level", "to", "asked_at", "passed"):
            return False
        record(request, "escalated", request.run, {"from": before, "level": request.level})
        tell(request_changed, request)
        return True


def _is_due(request: HumanRequest, now: datetime) -> bool:
    if request.status != HumanRequest.Status.PENDING or request.escalates_at is None:
        return False
    return request.escalates_at <= now and (request.expires_at is None or now < request.expires_at)


def _next(request: HumanRequest, now: datetime) -> tuple[int, datetime] | None:
    """Its level, and when its time begins."""
    begins, steps = request.escalates_at, request.steps or []
    for level in range(request.level + 1, len(steps)):
        assert begins is not None  # steps but the last one have a time
        ends = requests.end_of(request, level, begins)
        if (ends is None or now < ends) and people.means_somebody(steps[level]["to"], request):
            return level, begins
        begins = ends
    return None


def reassign_request(request_id: UUID | str, to: str, *, by: Any, name: str, reason: str, version: int) -> HumanRequest:
    """Put an address in the place of the one that is asked now: it has the time that was left, and the later steps
    stay. Returns the row. Raises ConflictError as `answer_request`."""
    with transaction.atomic():
        request: HumanRequest = HumanRequest.objects.select_related("run").get(id=request_id)
        if request.status != HumanRequest.Status.PENDING:
            refuse_late(request)
        check_in_time(request, request.run.status)
        before, request.version = request.to, version
        requests.passes_on(request, "reassigned", present())
        steps = [dict(step) for step in request.steps or [{"within": None}]]
        steps[request.level]["to"] = to
        request.steps, request.to, request.notified = steps, to, request.level - 1
        if not _changed(request, "steps", "to", "notified", "asked_at", "passed"):
            refuse_changed(request.id)
        forget_links([request.id], request.level)
        record(request, "reassigned", request.run, {"from": before, "by": name, "reason": reason})
        words = f"Reassigned from {before or 'staff'} to {to}"
        log_entry(request, by, f"{words}: {reason}" if reason else words)
        tell(request_changed, request)
    return request


def _changed(request: HumanRequest, *fields: str) -> bool:
    """Write them, as the next version, unless it is another one by now, or answered or closed."""
    same = HumanRequest.objects.filter(id=request.id, status=HumanRequest.Status.PENDING, version=request.version)
    values = {name: getattr(request, name) for name in fields}
    if not same.update(version=request.version + 1, **values):
        return False
    request.version += 1
    return True
