"""Change the address of a request: after the time of a step, or when a person reassigns it.

The times of the steps follow each other, beginning when the request opens. A step without a recipient is skipped: the
next one gets its time too. A late sweep asks the step whose time it is. After the last step its address stays until the
request expires. The run is not locked: the version of the request's row guards the change.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _

from ravi_django import users
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.clock import present
from ravi_django.kernel import Addressees, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.live.streams import hidden
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.people import requests, rights, site_rules
from ravi_django.people.records import log_entry, notify, record
from ravi_django.people.rights import Authority
from ravi_django.people.rows import check_in_time, conflict
from ravi_django.signals import request_changed
from ravi_django.users import permits


def due_to_escalate(limit: int) -> list[UUID]:
    """Requests whose step's time is up, the longest first; without those that have expired."""
    waiting = HumanRequest.objects.filter(status=HumanRequest.Status.PENDING, escalates_at__lte=clock.now())
    alive = waiting.filter(Q(expires_at=None) | Q(expires_at__gt=clock.now()))
    return list(alive.order_by("escalates_at", "id").values_list("id", flat=True)[:limit])


def escalate(request_id: UUID | str) -> bool:
    """Ask the next step that has a recipient. Returns whether the address has changed."""
    with transaction.atomic():
        request = HumanRequest.objects.select_related("run").get(id=request_id)
        now = present()
        if not _is_due(request, now) or request.run.status in TERMINAL:
            return False
        before = request.to
        step = _next(request, now)
        if step is None:  # nothing visible changes: no new version
            HumanRequest.objects.filter(id=request.id, version=request.version).update(escalates_at=None)
            return False
        request.asked_at = now
        requests.address_step(request, *step)
        if not _changed(request, "escalates_at", "level", "to", "asked_at"):
            return False
        record(request, "escalated", request.run, {"from": before, "level": request.level})
        notify(request_changed, request)
        return True


def _is_due(request: HumanRequest, now: datetime) -> bool:
    if request.status != HumanRequest.Status.PENDING or request.escalates_at is None:
        return False
    return request.escalates_at <= now and (request.expires_at is None or now < request.expires_at)


def _next(request: HumanRequest, now: datetime) -> tuple[int, datetime] | None:
    """The level of the step to ask now, and when its time begins."""
    begins, steps = request.escalates_at, request.steps or []
    for level in range(request.level + 1, len(steps)):
        assert begins is not None  # every step except the last has a time
        ends = requests.end_of(request, level, begins)
        if (ends is None or now < ends) and rights.has_recipient(steps[level]["to"], request):
            return level, begins
        begins = ends
    return None


def reassign_request(request_id: UUID | str, to: str, *, by: Any, name: str, reason: str, version: int) -> HumanRequest:
    """Replace the present address; the new one has the time that is left. Returns the row. Raises ConflictError as
    `answer_request`."""
    with transaction.atomic():
        request: HumanRequest = HumanRequest.objects.select_related("run").get(id=request_id)
        if request.status != HumanRequest.Status.PENDING:
            raise conflict(request)
        check_in_time(request, request.run.status)
        before, request.version = request.to, version
        request.asked_at = present()
        steps = [dict(step) for step in request.steps or [{"within": None}]]
        steps[request.level]["to"] = to
        request.steps, request.to, request.notified = steps, to, request.level - 1
        if not _changed(request, "steps", "to", "notified", "asked_at"):
            request.refresh_from_db()
            raise conflict(request)
        record(request, "reassigned", request.run, {"from": before, "by": name, "reason": reason})
        message = f"Reassigned from {before or 'staff'} to {to}"
        log_entry(request, by, f"{message}: {reason}" if reason else message)
        notify(request_changed, request)
    return request


def _changed(request: HumanRequest, *fields: str) -> bool:
    """Write these fields as the next version. Returns False if the row has changed, or is answered or closed."""
    same = HumanRequest.objects.filter(id=request.id, status=HumanRequest.Status.PENDING, version=request.version)
    values = {name: getattr(request, name) for name in fields}
    if not same.update(version=request.version + 1, **values):
        return False
    request.version += 1
    return True


def check(user: Any, request: HumanRequest) -> Authority | None:
    """The right by which `user` may reassign the request: the one to answer it. None for an operator of the site, who
    holds `ravi.change_humanrequest` and may see the request. Raises as `rights.check`."""
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
    """The new address. `right` is the result of `check`.

    Raises InvalidInputError when `to` is not one address, has no user who could answer, or would take a request from
    staff. Raises ForbiddenError when an operator who may not answer could answer afterwards, as a delegate too.
    """
    step = Addressees.of(to)
    address = rights.address_of(step.steps[0].to, request.owner_id)
    if len(step.steps) > 1:
        raise InvalidInputError(_("Enter one address only. The later steps do not change."), field="to")
    if address == "owner" and request.kind not in rights.CONVERSATION and hidden.is_about(request):
        raise InvalidInputError(
            _("The arguments of %(tool)s are hidden from the owner. Choose another address.") % {"tool": request.tool},
            field="to",
        )
    if address == request.to:
        raise InvalidInputError(
            _("The request is already addressed to %(address)s.") % {"address": address}, field="to"
        )
    placed = copy(request)
    placed.to = address
    if right is None and next(rights.rights_to(user, placed), None) is not None:  # without the site's hook
        raise ForbiddenError(
            _("The address %(address)s includes you, but you may not answer request %(id)s. Choose another address.")
            % {"address": address, "id": request.pk}
        )
    confirms = address == "owner" and request.four_eyes  # only the agent's code and the site may ask the owner
    if confirms or not rights.has_recipient(address, placed):
        raise InvalidInputError(
            _("Nobody at %(address)s may answer request %(id)s. Choose another address.")
            % {"address": address, "id": request.id},
            field="to",
        )
    if user is not None and rights.goes_to_staff(request):
        _check_stays_with_staff(request, address, placed)
    return address


def _check_stays_with_staff(request: HumanRequest, address: str, placed: HumanRequest) -> None:
    asked, recipients = rights.address_now(request), rights.candidates(address, placed)
    meant = site_rules.of_users(recipients, asked)
    if any(asked not in meant[user.pk] and not users.has(user, "is_staff") for user in recipients):
        raise InvalidInputError(
            _("The address %(address)s includes users who are not staff. Request %(id)s is for %(asked)s.")
            % {"address": address, "id": request.id, "asked": asked},
            field="to",
        )
