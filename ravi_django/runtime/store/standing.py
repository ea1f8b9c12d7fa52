"""Decisions that stand for a session: found before anybody is asked again, and used with a record of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.db import transaction
from ravi_django.kernel import Risk
from ravi_django.models import AuditRecord, HumanRequest, StickyDecision
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.audit import write_audit
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease

_NO_RUN = UUID(int=0)  # of a decision that has outlived the run in which it was given


class NotStanding(Exception):
    """The decision was revoked, or replaced, since it was found."""


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
    return AuditRecord(
        key=hashlib.sha256(f"standing:{decision.id}:revoked".encode()).hexdigest(),
        event="request",
        name="standing_revoked",
        owner_id=decision.session.owner_id,
        tenant=decision.session.tenant,
        agent=decision.agent,
        run_id=_NO_RUN if decision.request is None else decision.request.run_id,
        session_id=decision.session_id,
        detail={
            "decision": str(decision.id),
            "request": None if decision.request_id is None else str(decision.request_id),
            "action": decision.action,
            "by": decision.decided_by_name,
            "tool": decision.tool,
            "risk": decision.risk,
            **more,
        },
    )


def use_standing(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    decision: StickyDecision,
    request: HumanRequest,
) -> int:
    """Record a call that a standing decision decides on, with its place in the audit log; `request` is the one that is
    not made for it. Raises NotStanding, and nothing is written."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        if not StickyDecision.objects.select_for_update(no_key=True).filter(id=decision.id, revoked_at=None).exists():
            raise NotStanding
        run = lease.run
        write_audit(
            AuditRecord(
                key=hashlib.sha256(f"standing:{run.id}:{run.generation}:{request.path}".encode()).hexdigest(),
                event="request",
                name="standing",
                owner_id=run.owner_id,
                tenant=run.tenant,
                agent=run.agent,
                run_id=run.id,
                session_id=run.session_id,
                detail={
                    "decision": str(decision.id),
                    "request": None if decision.request_id is None else str(decision.request_id),
                    "action": decision.action,
                    "by": decision.decided_by_name,
                    "tool": request.tool,
                    "risk": request.risk,
                    "arguments_hash": request.arguments_hash,
                },
            )
        )
        return first
