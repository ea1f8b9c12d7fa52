"""No tool call without a result: whoever reads a conversation closes what an ending has left open."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.kernel import (
    ChatMessage,
    ContentBlock,
    Role,
    TextBlock,
    ToolResultBlock,
)

INTERRUPTED = "interrupted: the run ended before this tool call had a result; it may or may not have happened"


def close_dangling(turns: Sequence[ChatMessage], *, at_end: bool = True) -> list[ChatMessage]:
    """Give every tool call without a result an "interrupted" one, right behind the results that there are. Those of
    the last turn only `at_end`: the result may come in the turns that follow."""
    closed: list[ChatMessage] = []
    open_calls: list[str] = []
    for turn in turns:
        if turn.role is Role.TOOL:
            for block in turn.content:
                if isinstance(block, ToolResultBlock) and block.call_id in open_calls:
                    open_calls.remove(block.call_id)
        else:
            closed += interrupted(open_calls)
            open_calls = [call.call_id for call in turn.tool_calls] if turn.role is Role.ASSISTANT else []
        closed.append(turn)
    return closed + (interrupted(open_calls) if at_end else [])


def interrupted(call_ids: Sequence[str], text: str = INTERRUPTED) -> list[ChatMessage]:
    if not call_ids:
        return []
    results: list[ContentBlock] = [
        ToolResultBlock(call_id=call_id, content=[TextBlock(text=text)], is_error=True) for call_id in call_ids
    ]
    return [ChatMessage(role=Role.TOOL, content=results)]
