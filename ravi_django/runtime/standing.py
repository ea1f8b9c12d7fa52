"""Decisions that stand for a session: whether one decides on a call, and who takes one back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from ravi_django.kernel import ForbiddenError, NotFoundError, Risk
from ravi_django.models import HumanRequest, Run, StickyDecision
from ravi_django.runtime import people
from ravi_django.runtime.addresses import permits
from ravi_django.runtime.store import standing


def on(run: Run, request: HumanRequest) -> StickyDecision | None:
    """What stands for this call, whose `request` is not made then. An approval stands while whoever gave it could
    approve this very call: as they are now, with these arguments, of these addressees. A denial stands."""
    found = standing.standing(run.session_id, run.agent, request.tool, Risk(request.risk))
    if found is None or found.action == "deny" or _could_be_given(found, request):
        return found
    return None


def _could_be_given(decision: StickyDecision, request: HumanRequest) -> bool:
    if decision.decided_by_id is None:
        return not decision.decided_by_name  # the site's operator; not somebody whose user was deleted
    return people.could_answer(decision.decided_by, request)


def revocable(user: Any) -> QuerySet[StickyDecision]:
    """Those that `user` may take back: their own, and with `ravi.change_stickydecision` all."""
    if user is None:
        return StickyDecision.objects.all()
    present = people.as_now(user)
    if present is None:
        return StickyDecision.objects.none()
    if permits(present, "ravi.change_stickydecision"):
        return StickyDecision.objects.all()
    return StickyDecision.objects.filter(decided_by=present)


def revoke(decisions: Sequence[StickyDecision], *, by: Any) -> list[StickyDecision]:
    """From now on people are asked again; a call that is deciding on one at this moment comes before or after. Returns
    those that stood until now. `by` is None for the site's own operator.

    Raises NotFoundError for one that `by` may not see, ForbiddenError for one that they may only see.
    """
    ids = {decision.pk for decision in decisions}
    if others := ids.difference(revocable(by).filter(pk__in=ids).values_list("pk", flat=True)):
        present = people.as_now(by)
        one = next(iter(others))
        if present is None or not permits(present, "ravi.view_stickydecision"):
            raise NotFoundError(f"there is no standing decision {one}")
        raise ForbiddenError(f"standing decision {one} is for whoever gave it, and ravi.change_stickydecision")
    return standing.revoke_standing(ids, by=by)
