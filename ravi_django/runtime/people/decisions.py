"""Decisions on calls as their rows keep them, and which call each of them was used for."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.tools.delegate import HandoffTool
from ravi_django.kernel import DeterminismError, HumanInput, Tool
from ravi_django.runtime.journal.entries import Recorded
from ravi_django.runtime.journal.replay import Journal, check_identity
from ravi_django.runtime.lease.caps import KIND as CALL
from ravi_django.runtime.lease.state import RunState

KIND = "approval"

Kept = dict[str, Any]  # a decision as its row has it: decision, reason, by, and for "modified" arguments


def as_decision(kept: Kept) -> HumanInput:
    decision, arguments = kept.get("decision"), kept.get("arguments")
    reason, by = str(kept.get("reason") or ""), str(kept.get("by") or "")
    if decision == "modified" and isinstance(arguments, dict):
        return HumanInput("edit", arguments=arguments, reason=reason, by=by)
    return HumanInput(decision if decision in ("approved", "skipped") else "deny", reason=reason, by=by)


def decided(answer: dict[str, Any]) -> Kept:
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


def denied(reason: str, by: str = "") -> Kept:
    return {"decision": "denied", "reason": reason, "by": by}


def recalled(ctx: RunState, row: Recorded) -> Kept:
    """The recorded decision. A fork has copied it from another run: there it allows the call that was copied too, and
    no call that the fork would make itself."""
    kept: Kept = row.result
    if as_decision(kept).allows and ctx.effects.journal.is_shared(row) and not is_used(ctx, row):
        return denied("it was approved for the run that this one was forked from")
    return dict(kept)


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
    found = {row.seq for row in approvals if _is_asked_again(journal, row)}
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
    """Whether `later` is of the same tool and arguments as the approval, and was recorded by the same run."""
    arguments = as_decision(row.result).arguments or (row.request or {}).get("arguments")
    if later.name != row.name or (journal.is_shared(row) and not journal.is_shared(later)):
        return False
    try:
        check_identity(later, later.kind, row.name, arguments)
    except DeterminismError:
        return False
    return True


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
    place = _scope(path)
    return f"{place}{int(path[len(place) :]) + 1}"


def _scope(path: str) -> str:
    return path[: max(path.rfind("."), path.rfind("/")) + 1]
