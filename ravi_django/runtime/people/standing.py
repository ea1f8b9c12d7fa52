"""Sticky decisions of a session: finding one for a call, using it with a record, and revoking it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _

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
    """The session's decision for this call, or None. A denial always applies. An approval applies only while its giver
    could still approve this call, with these arguments and addresses."""
    found = standing(run.session_id, run.agent, request.tool, Risk(request.risk))
    if found is None or found.action == "deny":
        return found
    if found.decided_by_id is None:
        is_valid = not found.decided_by_name  # the site's operator; not a user who was deleted
    else:
        is_valid = rights.could_answer(found.decided_by, request)
    return found if is_valid else None


def revocable(user: Any) -> QuerySet[StickyDecision]:
    """The decisions that `user` may revoke: their own, and with `ravi.change_stickydecision` all."""
    if user is None:
        return StickyDecision.objects.all()
    present = rights.as_now(user)
    if present is None:
        return StickyDecision.objects.none()
    if permits(present, "ravi.change_stickydecision"):
        return StickyDecision.objects.all()
    return StickyDecision.objects.filter(decided_by=present)


def revoke(decisions: Sequence[StickyDecision], *, by: Any) -> list[StickyDecision]:
    """Revoke decisions: from now on people are asked again. Returns those that were valid until now. `by` is None for
    the site's own operator.

    Raises NotFoundError for a decision that `by` may not see, ForbiddenError for one that they may only see.
    """
    ids = {decision.pk for decision in decisions}
    if others := ids.difference(revocable(by).filter(pk__in=ids).values_list("pk", flat=True)):
        present = rights.as_now(by)
        one = next(iter(others))
        if present is None or not permits(present, "ravi.view_stickydecision"):
            raise NotFoundError(_("There is no sticky decision %(id)s.") % {"id": one})
        raise ForbiddenError(
            _("You may not revoke sticky decision %(id)s. This needs its author or ravi.change_stickydecision.")
            % {"id": one}
        )
    return revoke_standing(ids, by=by)


_NO_RUN = UUID(int=0)  # for a decision whose run is deleted


def standing(session_id: UUID, agent: str, tool: str, risk: Risk) -> StickyDecision | None:
    """The valid decision on this tool in this session, for calls of this risk or a higher one."""
    covering = [one.value for one in Risk if one.rank >= risk.rank]
    rows = StickyDecision.objects.filter(session_id=session_id, agent=agent, tool=tool, revoked_at=None)
    found: StickyDecision | None = rows.filter(risk__in=covering).first()
    return found


def revoke_standing(decision_ids: Iterable[UUID], *, by: Any) -> list[StickyDecision]:
    """Revoke them, each with its record. Returns those that were valid until now."""
    with transaction.atomic():
        return _revoke(
            StickyDecision.objects.filter(id__in=decision_ids), by, None if by is None else by.get_username()
        )


def stick(decision: StickyDecision) -> None:
    """In the caller's transaction: write it, and revoke the earlier one."""
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
    detail = {"tool": decision.tool, "risk": decision.risk, **more}
    return _record("standing_revoked", f"{decision.id}:revoked", decision, detail, run_id=run_id, **owner)


def _record(name: str, key: str, decision: StickyDecision, more: dict[str, str], **columns: Any) -> AuditRecord:
    detail = {
        "decision": str(decision.id),
        "request": None if decision.request_id is None else str(decision.request_id),
        "action": decision.action,
        "by": decision.decided_by_name,
        **more,
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
    """Append the row of a call that the decision allows or denies, with its audit record. `request` is the request that
    is not made. Raises NotStanding when the decision was revoked."""
    if not StickyDecision.objects.select_for_update(no_key=True).filter(id=decision.id, revoked_at=None).exists():
        raise NotStanding
    run = lease.run
    key = f"{run.id}:{run.generation}:{request.path}"
    call = {"tool": request.tool, "risk": request.risk, "arguments_hash": request.arguments_hash}
    write_audit(_record("standing", key, decision, call, owner_id=run.owner_id, tenant=run.tenant, run_id=run.id))
