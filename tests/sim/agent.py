"""The agent of the simulation: a ReActAgent that plays a story, and a ledger of what it did to the world."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import (
    ChatMessage,
    GenerationOptions,
    Happened,
    ModelResponse,
    NotHappened,
    Role,
    RunContext,
    RunMeta,
    TextBlock,
    ToolUseBlock,
    Usage,
)
from ravi_django.testing.scripted import turns_since_user
from tests.acceptance.crash.story import INPUT, OUTPUT, Story
from tests.support.world import current_context

TOOLS = ("idempotent", "at_most_once", "transactional", "checked", "nap", "wait")
USAGE = Usage(input_tokens=INPUT, output_tokens=OUTPUT)
MODEL_S, EFFECT_S = 0.5, 0.2

ledger: list[dict[str, Any]] = []  # of the present schedule


def note(kind: str, number: int, **said: Any) -> None:
    lease = current_context().effects.lease
    ledger.append({"kind": kind, "run": str(lease.run_id), "number": number, "epoch": lease.epoch, **said})


class Model:
    name = "sim"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[Any]:
        turn = turns_since_user(messages)
        note("model", turn)
        await asyncio.sleep(MODEL_S)
        story = Story.read(next(message.text for message in reversed(messages) if message.role is Role.USER))
        if turn < len(story.turns):
            yield ModelResponse.of(
                [
                    ToolUseBlock(
                        tool_name=step.tool,
                        arguments={"number": step.number, **step.arguments},
                        call_id=f"c{step.number}",
                    )
                    for step in story.turns[turn]
                ],
                usage=USAGE,
                model=self.name,
                finish_reason="tool_calls",
            )
        else:
            yield ModelResponse.of([TextBlock(text=_heard(messages))], usage=USAGE, model=self.name)


def _heard(messages: Sequence[ChatMessage]) -> str:
    """What the tools said since the last user message, in the order of the calls."""
    said: dict[str, str] = {}
    order: list[str] = []
    for message in messages:
        if message.role is Role.USER:
            said, order = {}, []
        order += [block.call_id for block in message.tool_calls]
        if message.role is Role.TOOL:
            for block in message.content:
                said[block.call_id] = "".join(part.text for part in block.content)
    return "; ".join(said[call_id] for call_id in order) or "nothing to do"


async def _effect(kind: str, number: int, ctx: RunContext) -> str:
    note(kind, number, key=ctx.idempotency_key)
    await asyncio.sleep(EFFECT_S)
    return f"{kind} {number}"


@tool(risk="safe", effect="idempotent")
async def idempotent(number: int, ctx: RunContext) -> str:
    """Do something that the other side deduplicates by its key."""
    return await _effect("idempotent", number, ctx)


@tool(risk="safe", effect="at_most_once", timeout=3)
async def at_most_once(number: int, ctx: RunContext) -> str:
    """Do something that must not be done twice."""
    return await _effect("at_most_once", number, ctx)


def find(arguments: dict[str, Any], key: str) -> Happened | type[NotHappened]:
    there = any(line.get("key") == key for line in ledger)
    return Happened(f"checked {arguments['number']}") if there else NotHappened


@tool(risk="safe", effect="at_most_once", timeout=3, check=find)
async def checked(number: int, ctx: RunContext) -> str:
    """Do something that must not be done twice, and that can be looked up."""
    return await _effect("checked", number, ctx)


@tool(risk="safe", effect="transactional")
def transactional(number: int, ctx: RunContext) -> str:
    """Write to the site's own database."""
    with connection.cursor() as cursor:
        row = [ctx.run_id, number, ctx.idempotency_key]
        cursor.execute("INSERT INTO lab_row (run, number, key) VALUES (%s, %s, %s)", row)
    return f"transactional {number}"


@tool(risk="safe", timeout=600)
async def nap(number: int, seconds: float, ctx: RunContext) -> str:
    """Sleep for some seconds."""
    await ctx.sleep_until(timedelta(seconds=seconds))
    return f"nap {number}"


@tool(risk="safe", timeout=600)
async def wait(number: int, ctx: RunContext) -> str:
    """Wait for the signal of this number."""
    await ctx.sleep_until_signal(f"go {number}")
    return f"wait {number}"


def agent() -> ReActAgent:
    return ReActAgent(
        "sim",
        model=Model(),
        tools=[idempotent, at_most_once, checked, transactional, nap, wait],
        context=ContextConfig(DjangoHistoryProvider()),
        max_iterations=50,
    )
