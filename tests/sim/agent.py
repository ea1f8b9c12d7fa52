"""The agent of the simulation: a ReActAgent that plays a story, and a ledger of its effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    GenerationOptions,
    Happened,
    Message,
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
from tests.acceptance.crash.wishes import AMOUNT, CLERKS, EXPIRES_S, done, heard
from tests.support.world import current_context

SIM = AgentId("react", "sim")
USAGE = Usage(input_tokens=INPUT, output_tokens=OUTPUT)
MODEL_S, EFFECT_S = 0.5, 0.2

# Of the present schedule:
ledger: list[dict[str, Any]] = []
votes: list[dict[str, Any]] = []  # what each person heard of an answer
broken: list[str] = []  # for each, the code of a root run raises once
on_wait: Callable[[str, str], None] = (
    print  # called with the run and the name of the signal that it is about to wait for
)


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
                said[block.call_id] = heard("".join(part.text for part in block.content))
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
    on_wait(ctx.run_id, f"go {number}")
    await ctx.sleep_until_signal(f"go {number}")
    return f"wait {number}"


@tool(risk="safe", timeout=600)
async def delegate(number: int, task: str, ctx: RunContext) -> str:
    """Ask another run to do a task."""
    return f"delegate {number}: {_outcome(await ctx.ask(SIM, task))}"


@tool(risk="safe", timeout=600)
async def hire(number: int, task: str, ctx: RunContext) -> str:
    """Start another run with a task and wait for its end."""
    return f"hire {number}: {_outcome(await ctx.join(await ctx.spawn(SIM, task)))}"


def _outcome(outcome: Any) -> str:
    if outcome.kind != "replied":
        return f"({outcome.kind}: {outcome.result})"
    return str(outcome.result["text"] if isinstance(outcome.result, dict) else outcome.result)


@tool(risk="safe", timeout=600)
async def ask_person(number: int, wish: str, ctx: RunContext) -> str:
    """Ask a question."""
    told = await ctx.ask_human(f"{wish} {number}", to=f"group:{CLERKS}")
    return f"ask_person {number}: {told['action']} {told['text']}".rstrip()


@tool(risk="critical", effect="at_most_once", timeout=3)
async def gated_once(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Do it once, when a person approves."""
    await _effect("gated_once", number, ctx)
    return done("gated_once", number, amount)


@tool(risk="high", effect="at_most_once", timeout=3, approvers=[(f"group:{CLERKS}", EXPIRES_S)])
async def expiring(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Ask people who never answer."""
    await _effect("expiring", number, ctx)
    return done("expiring", number, amount)


class Agent(ReActAgent):
    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        if broken and current_context().effects.lease.run.parent_id is None:
            raise RuntimeError(broken.pop())
        return await super().run(ctx, inbox)


EFFECTS = [idempotent, at_most_once, checked, transactional]
TOOLS = [*EFFECTS, nap, wait, delegate, hire, ask_person, gated_once, expiring]


def agent() -> ReActAgent:
    return Agent(
        SIM.key,
        model=Model(),
        tools=TOOLS,
        approvers={"gated_once": f"group:{CLERKS}"},
        context=ContextConfig(DjangoHistoryProvider()),
        max_iterations=50,
    )
