"""Decisions that stand for a session: finding one for a call, using it with a record, and revoking it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.db import transaction
from ravi_django.kernel import ForbiddenError, NotFoundError, Risk
from ravi_django.models import AuditRecord, HumanRequest, Run, StickyDecision
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.journal.outbox import write_audit
from ravi_django.runtime.lease.gate import NotStanding
from ravi_django.runtime.people import rights
from ravi_django.users import permits


def on(run: Run, request: HumanRequest) -> StickyDecision | None:
    """What stands for this call, whose `request` is not made then. An approval stands while whoever gave it could
    approve this very call: as they are now, with these arguments, of these addressees. A denial stands."""
    found = standing(run.session_id, run.agent, request.tool, Risk(request.risk))
    if found is None or found.action == "deny" or _could_be_given(found, request):
        return found
    return None


def _could_be_given(decision: StickyDecision, request: HumanRequest) -> bool:
    if decision.decided_by_id is None:
        return not decision.decided_by_name  # the site's operator; not somebody whose user was deleted
    return rights.could_answer(decision.decided_by, request)


def revocable(user: Any) -> QuerySet[StickyDecision]:
    """Those that `user` may take back: their own, and with `ravi.change_stickydecision` all."""
    if user is None:
        return StickyDecision.objects.all()
    present = rights.as_now(user)
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
        present = rights.as_now(by)
        one = next(iter(others))
        if present is None or not permits(present, "ravi.view_stickydecision"):
            raise NotFoundError(f"there is no standing decision {one}")
        raise ForbiddenError(f"standing decision {one} is for whoever gave it, and ravi.change_stickydecision")
    return revoke_standing(ids, by=by)


_NO_RUN = UUID(int=0)  # of a decision that has outlived the run in which it was given


def standing(session_id: UUID, agent: str, tool: str, risk: Risk) -> StickyDecision | None:
    """What was decided on this tool in this session, for calls of this risk or a higher one."""
    covering = [one.value for one in Risk if one.rank >= risk.rank]
    rows = StickyDecision.objects.filter(session_id=session_id, agent=agent, tool=tool, revoked_at=None)
    found: StickyDecision | None = rows.filter(risk__in=covering).first()
    return found


def revoke_standing(decision_ids: Iterable[UUID], *, by: Any) -> list[StickyDecision]:
    """Take them back, each with its record. Returns those that stood until now."""
    with transaction.atomic():
        return _revoke(
            StickyDecision.objects.filter(id__in=decision_ids), by, None if by is None else by.get_username()
        )


def stick(decision: StickyDecision) -> None:
    """In the caller's transaction: the newest one holds, in place of the one before."""
    same = {"session_id": decision.session_id, "agent": decision.agent, "tool": decision.tool}
    before = StickyDecision.objects.filter(**same)
    _revoke(before, decision.decided_by, decision.decided_by_name, replaced_by=str(decision.id))
    clock.stamp(decision).save(force_insert=True)


def _revoke(decisions: QuerySet[StickyDecision], by: Any, name: str | None, **more: str) -> list[StickyDecision]:
    live = decisions.filter(revoked_at=None).select_for_update(no_key=True, of=("self",)).order_by("id")
    found = list(live.select_related("session", "request"))
    StickyDecision.objects.filter(id__in=[one.id for one in found]).update(revoked_at=clock.now(), revoked_by=by)
    write_audit(*(_revoked(one, {"revoked_by": name or "", **more}) for one in found))
    return found


def _revoked(decision: StickyDecision, more: dict[str, str]) -> AuditRecord:
    owner = {"owner_id": decision.session.owner_id, "tenant": decision.session.tenant}
    run_id = _NO_RUN if decision.request is None else decision.request.run_id
    told = {"tool": decision.tool, "risk": decision.risk, **more}
    return _record("standing_revoked", f"{decision.id}:revoked", decision, told, run_id=run_id, **owner)


def _record(name: str, key: str, decision: StickyDecision, told: dict[str, str], **columns: Any) -> AuditRecord:
    detail = {
        "decision": str(decision.id),
        "request": None if decision.request_id is None else str(decision.request_id),
        "action": decision.action,
        "by": decision.decided_by_name,
        **told,
    }
    return AuditRecord(
        key=hashlib.sha256(f"standing:{key}".encode()).hexdigest(),
        event="request",
        name=name,
        agent=decision.agent,
        session_id=decision.session_id,
        detail=detail,
        **columns,
    )


@appending
def use_standing(lease: Lease, *, decision: StickyDecision, request: HumanRequest) -> None:
    """Record a call that a standing decision decides on, with its place in the audit log; `request` is the one that is
    not made for it. Raises NotStanding, and nothing is written."""
    if not StickyDecision.objects.select_for_update(no_key=True).filter(id=decision.id, revoked_at=None).exists():
        raise NotStanding
    run = lease.run
    key = f"{run.id}:{run.generation}:{request.path}"
    told = {"tool": request.tool, "risk": request.risk, "arguments_hash": request.arguments_hash}
    write_audit(_record("standing", key, decision, told, owner_id=run.owner_id, tenant=run.tenant, run_id=run.id))
