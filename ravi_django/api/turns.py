"""The turns of a conversation for clients: every tool call has a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.agents.memory.transcript import INTERRUPTED, interrupted
from ravi_django.kernel import Role
from ravi_django.models import TERMINAL, Run, Turn

UNDER_WAY = "no result yet: the tool call is under way"
_LOOK_AHEAD = 20  # turns after a page, for the results of its last calls


def with_every_result(page: list[Turn]) -> list[Turn]:
    """The page, with a result after each turn whose calls have none. Nothing is stored: the call may get its result
    later."""
    missing = {turn.pk: calls for turn in page if (calls := _calls(turn))}
    if not missing:
        return page
    last = [caller for turn in _find_results(page, missing) for caller in _look_behind(page, turn, missing)]
    active = Run.objects.exclude(status__in=TERMINAL).filter(id__in={turn.run_id for turn in last})
    working = set(active.values_list("id", flat=True)) if last else set()
    under_way = {turn.pk for turn in last if turn.run_id in working}
    shown = []
    for turn in page:
        shown.append(turn)
        if left := missing.get(turn.pk):
            shown.append(_result(turn, left, UNDER_WAY if turn.pk in under_way else INTERRUPTED))
    return shown


def _look_behind(page: list[Turn], caller: Turn, missing: dict[Any, list[str]]) -> list[Turn]:
    """The last caller of the page, if the turns after the page have no result for it either."""
    behind = Turn.objects.filter(session_id=caller.session_id, agent=caller.agent, keeps=None).select_related("entry")
    newer = behind.filter(position__gt=page[-1].position).order_by("position")[:_LOOK_AHEAD]
    return [turn for turn in _find_results([caller, *newer], missing) if turn.pk == caller.pk]


def _find_results(turns: Iterable[Turn], missing: dict[Any, list[str]]) -> list[Turn]:
    """Remove calls that have a result from `missing`; returns the callers whose results may follow these turns."""
    callers: dict[str, Turn] = {}  # by agent
    for turn in turns:
        if turn.role != Role.TOOL:
            callers.pop(turn.agent, None)
            if missing.get(turn.pk):
                callers[turn.agent] = turn
        elif turn.agent in callers:
            found = {block.get("call_id") for block in turn.blocks if block.get("type") == "tool_result"}
            calls = missing[callers[turn.agent].pk]
            calls[:] = [call for call in calls if call not in found]
    return [turn for turn in callers.values() if missing[turn.pk]]


def _calls(turn: Turn) -> list[str]:
    if turn.role != Role.ASSISTANT:
        return []
    return [block["call_id"] for block in turn.blocks if block.get("type") == "tool_use"]


def _result(turn: Turn, calls: list[str], text: str) -> Turn:
    (message,) = interrupted(calls, text)
    made = Turn(
        session_id=turn.session_id,
        agent=turn.agent,
        position=turn.position,
        run_id=turn.run_id,
        role=Role.TOOL,
        content=message.to_json()["content"],
        created_at=turn.created_at,
    )
    made.place = f"{turn.position}.results"  # type: ignore[attr-defined]
    return made
