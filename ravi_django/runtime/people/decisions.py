"""Decisions on calls, as their rows keep them: what they come to, and which call each was used for."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.tools.delegate import HandoffTool
from ravi_django.kernel import ApprovalDecision, DeterminismError, Tool
from ravi_django.runtime.journal.entries import Recorded
from ravi_django.runtime.journal.replay import Journal, check_identity
from ravi_django.runtime.lease.caps import KIND as CALL
from ravi_django.runtime.lease.state import RunState

KIND = "approval"

Kept = dict[str, Any]  # a decision as its row has it: decision, reason, by, and arguments of "modified"


def told(kept: Kept) -> ApprovalDecision:
    """A decision as the caller gets it."""
    decision, arguments = kept.get("decision"), kept.get("arguments")
    reason, by = str(kept.get("reason") or ""), str(kept.get("by") or "")
    if decision == "modified" and isinstance(arguments, dict):
        return ApprovalDecision("modified", arguments, reason, by)
    if decision in ("approved", "skipped"):
        return ApprovalDecision(decision, None, reason, by)
    return ApprovalDecision("denied", None, reason, by)


def decided(answer: dict[str, Any]) -> Kept:
    """What a person's answer comes to. Two actions approve; whatever else it may be does not."""
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


def denied(reason: str, by: str = "") -> Kept:
    return {"decision": "denied", "reason": reason, "by": by}


# ------------------------------------------------------------------------------------------ what it was used for


def recalled(ctx: RunState, row: Recorded) -> Kept:
    """The recorded decision. In a fork it is another run's: good for the call that was made by it and is copied too,
    not for one that this run would make."""
    kept: Kept = row.result
    if told(kept).allows and ctx.effects.journal.is_shared(row) and not is_used(ctx, row):
        return denied("it was approved for the run that this one was forked from")
    return dict(kept)


def is_used(ctx: RunState, row: Recorded) -> bool:
    """Whether nothing is made by this approval any more: the result of its call is recorded, the agent that it hands
    to was begun, or a person's arguments made it a riskier call, which was asked about anew."""
    effects = ctx.effects
    if effects.used_approvals is None:
        effects.used_approvals = _used(effects.journal)
    return row.seq in effects.used_approvals or _is_begun(effects.journal, row, ctx.toolbox.get(row.name))


def _used(journal: Journal) -> set[int]:
    """Each call is one approval's: of its tool, with its arguments, recorded behind it; that of its own scope first."""
    approvals = sorted((row for row in journal.recorded(KIND) if told(row.result).allows), key=lambda row: row.seq)
    calls = sorted(journal.recorded(CALL), key=lambda row: row.seq)
    found = {row.seq for row in approvals if _is_asked_anew(journal, row)}
    for anywhere in (False, True):
        for row in approvals:
            if row.seq in found:
                continue
            place = _scope(row.path)
            for call in calls:
                if call.seq > row.seq and (anywhere or _scope(call.path) == place) and _follows(journal, row, call):
                    found.add(row.seq)
                    calls.remove(call)
                    break
    return found


def _follows(journal: Journal, row: Recorded, later: Recorded) -> bool:
    """Whether `later` is about what the approval is of, and was recorded by the same run."""
    arguments = told(row.result).arguments or (row.request or {}).get("arguments")
    if later.name != row.name or (journal.is_shared(row) and not journal.is_shared(later)):
        return False
    try:
        check_identity(later, later.kind, row.name, arguments)
    except DeterminismError:
        return False
    return True


def _is_begun(journal: Journal, row: Recorded, tool: Tool | None) -> bool:
    """An agent that delegates without a tool's call has the child in its place."""
    later = journal.find(_next(row.path))
    if later is None or later.kind != "child.spawned" or not isinstance(tool, HandoffTool):
        return False
    return later.name == str(tool.agent_id) and (journal.is_shared(later) or not journal.is_shared(row))


def _is_asked_anew(journal: Journal, row: Recorded) -> bool:
    later = journal.find(_next(row.path)) or journal.started(_next(row.path))
    return (
        told(row.result).decision == "modified"
        and later is not None
        and (later.kind == KIND and _follows(journal, row, later))
    )


def _next(path: str) -> str:
    place = _scope(path)
    return f"{place}{int(path[len(place) :]) + 1}"


def _scope(path: str) -> str:
    return path[: max(path.rfind("."), path.rfind("/")) + 1]
