"""Sticky decisions of a session: finding one for a call, using it with a record, and revoking it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from ravi_django.agents.tools.delegate import HandoffTool
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Recorded
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.outbox import write_audit
from ravi_django.engine.journal.replay import ARGUMENTS, Journal, arguments_digest
from ravi_django.engine.lease.caps import KIND as CALL
from ravi_django.engine.lease.gate import StickyRevoked
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import ForbiddenError, HumanInput, NotFoundError, Risk, Tool
from ravi_django.models import AuditRecord, HumanRequest, Run, StickyDecision
from ravi_django.people import rights
from ravi_django.users import permits


def decision_for(run: Run, request: HumanRequest) -> StickyDecision | None:
    """The session's decision for this call, or None. A denial always applies. An approval applies only while its giver
    could still approve this call, with these arguments and addresses."""
    decision = find_sticky(run.session_id, run.agent, request.tool, Risk(request.risk))
    if decision is None or decision.action == "deny":
        return decision
    if decision.decided_by_id is None:
        is_valid = not decision.decided_by_name  # the site's operator; not a user who was deleted
    else:
        is_valid = rights.may_answer_unsaved(decision.decided_by, request)
    return decision if is_valid else None


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
    return revoke_sticky(ids, by=by)


_NO_RUN = UUID(int=0)  # for a decision whose run is deleted


def find_sticky(session_id: UUID, agent: str, tool: str, risk: Risk) -> StickyDecision | None:
    """The valid decision on this tool in this session, for calls of this risk or a higher one."""
    covering = [one.value for one in Risk if one.rank >= risk.rank]
    rows = StickyDecision.objects.filter(session_id=session_id, agent=agent, tool=tool, revoked_at=None)
    decision: StickyDecision | None = rows.filter(risk__in=covering).first()
    return decision


def revoke_sticky(decision_ids: Iterable[UUID], *, by: Any) -> list[StickyDecision]:
    """Revoke them, each with its record. Returns those that were valid until now."""
    with transaction.atomic():
        return _revoke(
            StickyDecision.objects.filter(id__in=decision_ids), by, None if by is None else by.get_username()
        )


def save_sticky(decision: StickyDecision) -> None:
    """In the caller's transaction: write it, and revoke the earlier one."""
    same = {"session_id": decision.session_id, "agent": decision.agent, "tool": decision.tool}
    before = StickyDecision.objects.filter(**same)
    _revoke(before, decision.decided_by, decision.decided_by_name, replaced_by=str(decision.id))
    clock.stamp(decision).save(force_insert=True)


def _revoke(decisions: QuerySet[StickyDecision], by: Any, name: str | None, **more: str) -> list[StickyDecision]:
    live = decisions.filter(revoked_at=None).select_for_update(no_key=True, of=("self",)).order_by("id")
    revoked = list(live.select_related("session", "request"))
    StickyDecision.objects.filter(id__in=[one.id for one in revoked]).update(revoked_at=clock.now(), revoked_by=by)
    write_audit(*(_revoked(one, {"revoked_by": name or "", **more}) for one in revoked))
    return revoked


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
def use_sticky(lease: Lease, *, decision: StickyDecision, request: HumanRequest) -> None:
    """Append the row of a call that the decision allows or denies, with its audit record. `request` is the request that
    is not made. Raises StickyRevoked when the decision was revoked."""
    if not StickyDecision.objects.select_for_update(no_key=True).filter(id=decision.id, revoked_at=None).exists():
        raise StickyRevoked
    run = lease.run
    key = f"{run.id}:{run.generation}:{request.path}"
    call = {"tool": request.tool, "risk": request.risk, "arguments_hash": request.arguments_hash}
    write_audit(_record("standing", key, decision, call, owner_id=run.owner_id, tenant=run.tenant, run_id=run.id))


KIND = "approval"

RecordedDecision = dict[str, Any]  # a decision as its row has it: decision, reason, by, and for "modified" arguments


def as_decision(recorded: RecordedDecision) -> HumanInput:
    decision, arguments = recorded.get("decision"), recorded.get("arguments")
    reason, by = str(recorded.get("reason") or ""), str(recorded.get("by") or "")
    if decision == "modified" and isinstance(arguments, dict):
        return HumanInput("edit", arguments=arguments, reason=reason, by=by)
    return HumanInput(decision if decision in ("approved", "skipped") else "deny", reason=reason, by=by)


def decided(answer: dict[str, Any]) -> RecordedDecision:
    """The decision of a person's answer. Two actions approve, and nothing else does."""
    reason, by = str(answer.get("reason") or ""), str(answer.get("by") or "")
    match answer.get("action"):
        case "approve":
            return {"decision": "approved", "reason": reason, "by": by}
        case "edit" if isinstance(answer.get("arguments"), dict):
            return {"decision": "modified", "reason": reason, "by": by, "arguments": answer["arguments"]}
        case "skip":
            return {"decision": "skipped", "reason": reason, "by": by}
        case "deny":
            return denied(reason, by)
        case "expired":
            return denied("nobody answered in time")
        case "cancel" if "status" not in answer:
            return denied("the request was cancelled" + (f": {reason}" if reason else ""), by)
        case _:
            return denied("the request was closed without an answer", by)


def denied(reason: str, by: str = "") -> RecordedDecision:
    return {"decision": "denied", "reason": reason, "by": by}


def recalled(ctx: RunState, row: Recorded) -> RecordedDecision:
    """The recorded decision. A fork has copied it from another run: there it allows the call that was copied too, and
    no call that the fork would make itself."""
    recorded: RecordedDecision = row.result
    if as_decision(recorded).allows and ctx.effects.journal.is_shared(row) and not is_used(ctx, row):
        return denied("it was approved for the run that this one was forked from")
    return dict(recorded)


def is_used(ctx: RunState, row: Recorded) -> bool:
    """Whether the approval allows no further call: its call has a result, its agent was started, or a person's
    arguments raised the risk of the call, and people were asked again."""
    effects = ctx.effects
    if effects.used_approvals is None:
        effects.used_approvals = _used(effects.journal)
    return row.seq in effects.used_approvals or _is_begun(effects.journal, row, ctx.toolbox.get(row.name))


def _used(journal: Journal) -> set[int]:
    """Match each recorded call with one approval before it, of the same tool and arguments; in its own scope first."""
    approvals = sorted(
        (row for row in journal.recorded(KIND) if as_decision(row.result).allows), key=lambda row: row.seq
    )
    calls = sorted(journal.recorded(CALL), key=lambda row: row.seq)
    used = {row.seq for row in approvals if _is_asked_again(journal, row)}
    for anywhere in (False, True):
        for row in approvals:
            if row.seq in used:
                continue
            scope = _scope(row.path)
            for call in calls:
                if call.seq > row.seq and (anywhere or _scope(call.path) == scope) and _follows(journal, row, call):
                    used.add(row.seq)
                    calls.remove(call)
                    break
    return used


def _follows(journal: Journal, row: Recorded, later: Recorded) -> bool:
    """Whether `later` is of the same tool and arguments as the approval, and was recorded by the same run."""
    arguments = as_decision(row.result).arguments or (row.request or {}).get("arguments")
    if later.name != row.name or (journal.is_shared(row) and not journal.is_shared(later)):
        return False
    return (later.digests or {}).get(ARGUMENTS) == arguments_digest(arguments)


def _is_begun(journal: Journal, row: Recorded, tool: Tool | None) -> bool:
    """Whether a handoff, which makes no tool call, has started its child in the place of the call."""
    later = journal.find(_next(row.path))
    if later is None or later.kind != "child.spawned" or not isinstance(tool, HandoffTool):
        return False
    return later.name == str(tool.agent_id) and (journal.is_shared(later) or not journal.is_shared(row))


def _is_asked_again(journal: Journal, row: Recorded) -> bool:
    later = journal.find(_next(row.path)) or journal.started(_next(row.path))
    return (
        as_decision(row.result).decision == "modified"
        and later is not None
        and (later.kind == KIND and _follows(journal, row, later))
    )


def _next(path: str) -> str:
    prefix = path.rstrip("0123456789")
    return f"{prefix}{int(path[len(prefix) :]) + 1}"


def _scope(path: str) -> str:
    return path[: max(path.rfind("."), path.rfind("/")) + 1]
