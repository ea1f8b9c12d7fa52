"""Ask other people: a step's time is up, or somebody reassigns a request.

The times of the steps follow each other from the opening on. A step whose address means nobody is skipped: the one
asked in its place gets its time, and the last end stays. A late sweep asks the step whose time it is. If no step is
left, the last address stays until the request expires. The run is neither driven nor locked: only the request's row is
locked, and its version guards it.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django import users
from ravi_django.db import transaction
from ravi_django.kernel import Addressees, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.runtime.db import clock
from ravi_django.runtime.db.clock import present
from ravi_django.runtime.people import addressees, requests, rights
from ravi_django.runtime.people.links import forget_links
from ravi_django.runtime.people.records import log_entry, record, tell
from ravi_django.runtime.people.rights import Authority
from ravi_django.runtime.people.rows import check_in_time, conflict
from ravi_django.runtime.streams import hidden
from ravi_django.signals import request_changed
from ravi_django.users import permits


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
        request.asked_at = now
        requests.place_at(request, *found)
        if not _changed(request, "escalates_at", "level", "to", "asked_at"):
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
        if (ends is None or now < ends) and rights.means_somebody(steps[level]["to"], request):
            return level, begins
        begins = ends
    return None


def reassign_request(request_id: UUID | str, to: str, *, by: Any, name: str, reason: str, version: int) -> HumanRequest:
    """Put an address in the place of the one that is asked now: it has the time that was left, and the later steps
    stay. Returns the row. Raises ConflictError as `answer_request`."""
    with transaction.atomic():
        request: HumanRequest = HumanRequest.objects.select_related("run").get(id=request_id)
        if request.status != HumanRequest.Status.PENDING:
            raise conflict(request.id)
        check_in_time(request, request.run.status)
        before, request.version = request.to, version
        request.asked_at = present()
        steps = [dict(step) for step in request.steps or [{"within": None}]]
        steps[request.level]["to"] = to
        request.steps, request.to, request.notified = steps, to, request.level - 1
        if not _changed(request, "steps", "to", "notified", "asked_at"):
            raise conflict(request.id)
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


def check(user: Any, request: HumanRequest) -> Authority | None:
    """Whether `user` may address it to somebody else: who may answer it, by that right, and an operator of the site,
    who holds `ravi.change_humanrequest` and may see it: None. Raises as `rights.check`."""
    try:
        return rights.check(user, request)
    except (NotFoundError, ForbiddenError):
        present = rights.as_now(user)
        if present is None or not permits(present, "ravi.change_humanrequest"):
            raise
        reads = permits(present, "ravi.view_humanrequest") and HumanRequest.objects.filter(rights.in_tenant(present))
        if not (reads or rights.visible(present)).filter(pk=request.pk).exists():
            raise
    return None


def address_for(request: HumanRequest, to: Any, user: Any, right: Authority | None) -> str:
    """The address that `user` puts it to, by what `check` has said of them.

    Raises InvalidInputError where `to` is not one address, means nobody who could answer, or takes from staff what they
    decide; ForbiddenError where an operator who may not answer would come to do so by it: themselves, or in the place
    of one whom they stand in for.
    """
    step = Addressees.of(to)
    address = rights.address_of(step.steps[0].to, request.owner_id)
    if len(step.steps) > 1:
        raise InvalidInputError("to is one address: the steps behind the present one stay", field="to")
    if address == "owner" and request.kind not in rights.CONVERSATION and hidden.is_about(request):
        raise InvalidInputError(f"to: what {request.tool} is called with is hidden from the owner", field="to")
    if address == request.to:
        raise InvalidInputError(f"to: {address} is asked already", field="to")
    placed = copy(request)
    placed.to = address
    if right is None and next(rights.rights_to(user, placed), None) is not None:  # whatever the site's hook would say
        raise ForbiddenError(f"{address} means you, who may not answer request {request.pk}: put it to somebody else")
    confirms = address == "owner" and request.four_eyes  # that is for the agent's code and the site to ask
    if confirms or not rights.means_somebody(address, placed):
        raise InvalidInputError(f"to: {address} means nobody who may answer request {request.id}", field="to")
    if user is not None and rights.goes_to_staff(request):
        _check_stays_with_staff(request, address, placed)
    return address


def _check_stays_with_staff(request: HumanRequest, address: str, placed: HumanRequest) -> None:
    asked, found = rights.address_now(request), rights.candidates(address, placed)
    meant = addressees.of_users(found, asked)
    if any(asked not in meant[user.pk] and not users.has(user, "is_staff") for user in found):
        raise InvalidInputError(
            f"to: {address} means users who are not staff; request {request.id} is for {asked}", field="to"
        )
