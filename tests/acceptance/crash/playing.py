"""What an agent that plays a story says and does, in the laboratory and in the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ravi_django import tool
from ravi_django.kernel import ChatMessage, ModelResponse, Role, RunContext, TextBlock, ToolUseBlock, Usage
from ravi_django.testing.scripted_model import turns_since_user
from tests.acceptance.crash.story import INPUT, OUTPUT, Story
from tests.acceptance.crash.wishes import CLERKS, heard


def response(messages: Sequence[ChatMessage], model: str) -> ModelResponse:
    """The next turn of the story that the last user message holds; at its end what came of the calls."""
    turn, usage = turns_since_user(messages), Usage(input_tokens=INPUT, output_tokens=OUTPUT)
    story = Story.read(next(message.text for message in reversed(messages) if message.role is Role.USER))
    if turn >= len(story.turns):
        return ModelResponse.of([TextBlock(text=_answer(messages))], usage=usage, model=model)
    calls = [
        ToolUseBlock(
            tool_name=step.tool, arguments={"number": step.number, **step.arguments}, call_id=f"c{step.number}"
        )
        for step in story.turns[turn]
    ]
    return ModelResponse.of(calls, usage=usage, model=model, finish_reason="tool_calls")


def _answer(messages: Sequence[ChatMessage]) -> str:
    """What the tools said since the last user message, in the order of the calls."""
    said: dict[str, str] = {}
    order: list[str] = []
    for message in messages:
        if message.role is Role.USER:
            said, order = {}, []
        order += [block.call_id for block in message.tool_calls]
        if message.role is Role.TOOL:
            for block in message.content:
                said[block.call_id] = heard("".join(part.text for part in block.content))
    return "; ".join(said[call_id] for call_id in order) or "nothing to do"


def said(outcome: Any) -> str:
    """What has come of another run."""
    if outcome.kind != "replied":
        return f"({outcome.kind}: {outcome.result})"
    result = outcome.result
    return str(result["text"] if isinstance(result, dict) and "text" in result else result)


@tool(risk="safe", timeout=600)
async def nap(number: int, seconds: float, ctx: RunContext) -> str:
    """Sleep for some seconds."""
    await ctx.sleep_until(timedelta(seconds=seconds))
    return f"nap {number}"


@tool(risk="safe", timeout=600)
async def ask_person(number: int, wish: str, ctx: RunContext) -> str:
    """Ask a question."""
    told = await ctx.ask_human(f"{wish} {number}", to=f"group:{CLERKS}")
    return f"ask_person {number}: {told['action']} {told['text']}".rstrip()
