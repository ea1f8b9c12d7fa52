"""The laboratory's agent: a ReActAgent with a model that reads its turns from the input, and tools of every kind.

Model and effects take a few milliseconds, so that processes die inside of them too. What the world outside would have
seen goes to the ledger.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError, connections

import ravi_django
from ravi_django import FinishAgentResult, register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import CompactionPipeline, DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.agents.user_proxy import UserProxyAgent
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    ChatPayload,
    FunctionContext,
    FunctionMiddleware,
    GenerationOptions,
    Happened,
    Message,
    MiddlewareTermination,
    NotHappened,
    Priority,
    Role,
    RunContext,
    RunMeta,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    ToolUseBlock,
    TransientError,
)
from ravi_django.testing.scripted_model import turns_since_user
from ravi_django.tools import FunctionTool
from tests.acceptance.crash.lab_app import ledger
from tests.acceptance.crash.lab_app.crash_points import hit
from tests.acceptance.crash.lab_app.models import Row
from tests.acceptance.crash.memory_checks import view_of
from tests.acceptance.crash.playing import ask_person, nap, response, said
from tests.acceptance.crash.story import OUTLIVING, place_of
from tests.acceptance.crash.wishes import AMOUNT, CHIEFS, CLERKS, ESCALATES_S, EXPIRES_S, done
from tests.support.world import current_context

LAB = AgentId("react", "lab")
HEIR = AgentId("react", "heir")
USER = AgentId("user_proxy", "user")
LATE_S = 4.0  # above the timeout and the time that a cancelled task has to end
SLOWEST_S = float(os.environ.get("CRASH_SLOWEST_S", "0"))


class LabModel:
    """Plays the story that the last user message holds."""

    def __init__(self, name: str = "lab") -> None:
        self.name = name

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[Any]:
        note("model", turns_since_user(messages), agent=self.name, **view_of(messages))
        here("model.before")
        await asyncio.sleep(_moment())
        turn = response(messages, self.name)
        if not turn.message.tool_calls:
            for word in turn.text.split(" "):
                yield TextDelta(text=f"{word} ")
        here("model.after")
        yield turn


# ---------------------------------------------------------------------------------------------------- effects


@tool(risk="safe", effect="idempotent", timeout=120)  # longer than anybody is asleep
async def idempotent(number: int, ctx: RunContext) -> str:
    """Do something that the other side deduplicates by its key."""
    await _effect("idempotent", number, ctx)
    return f"idempotent {number}"


@tool(risk="safe", effect="at_most_once", timeout=3)  # a person may say what became of it that much later
async def at_most_once(number: int, ctx: RunContext) -> str:
    """Do something that must not be done twice."""
    await _effect("at_most_once", number, ctx)
    return f"at_most_once {number}"


def find(arguments: dict[str, Any], key: str) -> Happened | type[NotHappened] | None:
    """Ask the ledger; of a call that is not `known`, nobody can say anything."""
    if not arguments.get("known", True):
        return None
    folder = Path(os.environ["CRASH_FOLDER"])
    there = [line["kind"] for line in ledger.read(folder) if line.get("key") == key]
    return Happened(f"{there[0]} {arguments['number']}") if there else NotHappened


@tool(risk="safe", effect="at_most_once", timeout=3, check=find)
async def checked(number: int, ctx: RunContext, known: bool = True) -> str:
    """Do something that must not be done twice, and that can be looked up."""
    await _effect("checked", number, ctx)
    return f"checked {number}"


def outliving(name: str) -> FunctionTool:
    """A tool that must not be done twice, and that acts long after its timeout."""

    def act(number: int, ctx: RunContext) -> str:
        time.sleep(0 if "async" in name else LATE_S)
        note(name, number, key=ctx.idempotency_key)
        here("effect.after")
        return f"{name} {number}"

    async def resist(number: int, ctx: RunContext) -> str:
        ends = time.monotonic() + LATE_S
        while time.monotonic() < ends:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
        return act(number, ctx)

    options = {"effect": "at_most_once", "timeout": 0.3, "check": find if "checked" in name else None}
    return tool(name=name, **options)(resist if "async" in name else act)


@tool(risk="safe", effect="transactional", timeout=120)
def transactional(number: int, ctx: RunContext) -> str:
    """Write to the site's own database."""
    here("effect.before")
    Row.objects.create(run=ctx.run_id, number=number, key=ctx.idempotency_key)
    time.sleep(_moment())
    here("effect.after")
    return f"transactional {number}"


# ------------------------------------------------------------------------------------------------------ people


@tool(risk="high", effect="idempotent")
async def gated_idempotent(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Do it when a person approves."""
    await _effect("gated_idempotent", number, ctx)
    return done("gated_idempotent", number, amount)


@tool(risk="critical", effect="at_most_once", timeout=3)
async def gated_once(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Do it once, when a person approves."""
    await _effect("gated_once", number, ctx)
    return done("gated_once", number, amount)


@tool(risk="high", effect="transactional")
def gated_transactional(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Write it down when a person approves."""
    here("effect.before")
    Row.objects.create(run=ctx.run_id, number=number, key=ctx.idempotency_key)
    time.sleep(_moment())
    here("effect.after")
    return done("gated_transactional", number, amount)


@tool(risk="high", effect="at_most_once", timeout=3, approvers=[(f"group:{CLERKS}", EXPIRES_S)])
async def expiring(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Ask people who never answer."""
    await _effect("expiring", number, ctx)
    return done("expiring", number, amount)


@tool(risk="high", effect="at_most_once", timeout=3, approvers=[(f"group:{CLERKS}", ESCALATES_S), f"group:{CHIEFS}"])
async def escalating(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Ask people who leave it to others."""
    await _effect("escalating", number, ctx)
    return done("escalating", number, amount)


@tool(risk="safe", effect="at_most_once", timeout=3)
async def gated_inside(number: int, wish: str, ctx: RunContext, amount: int = AMOUNT) -> str:
    """Do it once, when a person approves whom a middleware asks."""
    await _effect("gated_inside", number, ctx)
    return done("gated_inside", number, amount)


class AskInside(FunctionMiddleware):
    async def process(self, context: FunctionContext, call_next: Any) -> None:
        decision = await context.ctx.approve("gated_inside", context.arguments, to=f"group:{CLERKS}")
        if not decision.allows:
            raise MiddlewareTermination(result=f"denied: {decision.reason}")
        await call_next()


@tool(risk="safe", timeout=600)
async def ask_proxy(number: int, wish: str, ctx: RunContext) -> str:
    """Have a person asked by the agent that stands for them."""
    return f"ask_proxy {number}: {said(await ctx.ask(USER, f'{wish} {number}'))}"


async def _effect(kind: str, number: int, ctx: RunContext) -> None:
    here("effect.before")
    if SLOWEST_S:  # else it acts at once: who wakes from a long sleep right before has no time to hear of that
        await asyncio.sleep(_moment())
    note(kind, number, key=ctx.idempotency_key)
    await asyncio.sleep(_moment())
    here("effect.after")


# ------------------------------------------------------------------------------------------------------- waits


@tool(risk="safe", timeout=600)
async def wait(number: int, ctx: RunContext) -> str:
    """Wait for the signal of this number."""
    await ctx.sleep_until_signal(f"go {number}")
    return f"wait {number}"


@tool(risk="safe", timeout=600)
async def poke(number: int, ctx: RunContext) -> str:
    """Signal this very run, and wait for that."""
    await asyncio.to_thread(_send, ctx.run_id, f"poke {number}", ctx.idempotency_key)
    await ctx.sleep_until_signal(f"poke {number}")
    return f"poke {number}"


def _send(run_id: str, name: str, key: str) -> None:
    try:
        ravi_django.signal(run_id, name, key=key)
    except (OperationalError, InterfaceError, InternalError) as error:  # the database restarts, or refuses writes
        raise TransientError(str(error)) from error
    finally:
        connections.close_all()


@tool(risk="safe", timeout=600)
async def delegate(number: int, task: str, ctx: RunContext, to: str = str(LAB), urgent: bool = False) -> str:
    """Ask another run to do a task."""
    return await _delegate(number, task, ctx, to, urgent)


async def _delegate(number: int, task: str, ctx: RunContext, to: str, urgent: bool) -> str:
    if urgent:
        outcome = await ctx.join(await ctx.spawn(AgentId.parse(to), task, priority=Priority.HIGH))
    else:
        outcome = await ctx.ask(AgentId.parse(to), task, memory="conversation")
    return f"delegate {number}: {said(outcome)}"


@tool(risk="safe", timeout=600)
async def hire(number: int, task: str, ctx: RunContext) -> str:
    """Start another run with a task and wait for its end."""
    return f"hire {number}: {said(await ctx.join(await ctx.spawn(LAB, task)))}"


@tool(risk="safe")
async def hand_over(number: int, task: str) -> FinishAgentResult:
    """Let another agent go on with this run."""
    return FinishAgentResult(target=HEIR, task=task)


# -------------------------------------------------------------------------------------------------------- code


class LabCode:
    """Plays a story as the ReActAgent does, but by its own code: it asks other runs itself, all of a turn at once.
    Every third of a planned tree replies, and ends behind its reply."""

    id = AgentId("test", "lab-code")
    model = LabModel("lab-code")
    tools = (idempotent, at_most_once, transactional)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        payload = inbox[0].payload
        assert isinstance(payload, ChatPayload)
        messages = [payload.message]
        while True:
            response = await ctx.llm(messages)
            calls = response.message.tool_calls
            if not calls:
                break
            async with asyncio.TaskGroup() as turn:
                played = [turn.create_task(self._play(ctx, call)) for call in calls]
            results: list[Any] = [
                ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=each.result())])
                for call, each in zip(calls, played, strict=True)
            ]
            messages += [response.message, ChatMessage(role=Role.TOOL, content=results)]
        if (place_of(payload.message.text) or 0) % 3 == 1:
            await ctx.reply(inbox[0], response.text)
        return response.text

    async def _play(self, ctx: RunContext, call: ToolUseBlock) -> str:
        if call.tool_name == "delegate":
            return await _delegate(ctx=ctx, **call.arguments)
        return (await ctx.tool(call.tool_name, **call.arguments)).text


# ------------------------------------------------------------------------------------------------------ inside


def note(kind: str, number: int, **more: Any) -> None:
    lease = current_context().recorder.lease
    ledger.note(kind, run=str(lease.run_id), number=number, epoch=lease.epoch, **more)


def here(point: str) -> None:
    hit(point, current_context().recorder.lease.run.tree_id)


def _moment() -> float:
    return random.uniform(0, SLOWEST_S)


register(LabCode())
register(UserProxyAgent("user", to=f"group:{CLERKS}"))
for key in ("lab", "heir"):
    agent = ReActAgent(
        key,
        model=LabModel(key),
        tools=[
            *(idempotent, at_most_once, checked, transactional, nap, wait, poke, delegate, hire),
            *map(outliving, OUTLIVING),
            *(
                ask_person,
                ask_proxy,
                gated_idempotent,
                gated_once,
                gated_transactional,
                expiring,
                escalating,
                hand_over,
            ),
        ],
        approvers={name: f"group:{CLERKS}" for name in ("gated_idempotent", "gated_once", "gated_transactional")},
        context=ContextConfig(DjangoHistoryProvider(), CompactionPipeline()),  # reads the whole conversation
        max_iterations=50,
    )
    register(agent)
register(ReActAgent("inside", model=LabModel(), tools=[gated_inside], middleware=[AskInside()]))
