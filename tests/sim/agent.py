"""The agent of the simulation: a ReActAgent that plays a story, and a ledger of its effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from django.db import connection

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    GenerationOptions,
    Happened,
    Message,
    NotHappened,
    RunContext,
    RunMeta,
)
from ravi_django.testing.scripted_model import turns_since_user
from tests.acceptance.crash.playing import ask_person, nap, response, said
from tests.acceptance.crash.wishes import AMOUNT, CLERKS, EXPIRES_S, done
from tests.support.world import current_context

SIM = AgentId("react", "sim")
MODEL_S, EFFECT_S = 0.5, 0.2

# Of the present schedule:
ledger: list[dict[str, Any]] = []
votes: list[dict[str, Any]] = []  # what each person heard of an answer
broken: list[str] = []  # for each, the code of a root run raises once
# Called with the run and the name of the signal that it is about to wait for:
on_wait: Callable[[str, str], None] = print


def note(kind: str, number: int, **more: Any) -> None:
    lease = current_context().recorder.lease
    ledger.append({"kind": kind, "run": str(lease.run_id), "number": number, "epoch": lease.epoch, **more})


class Model:
    name = "sim"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[Any]:
        note("model", turns_since_user(messages))
        await asyncio.sleep(MODEL_S)
        yield response(messages, self.name)


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
async def wait(number: int, ctx: RunContext) -> str:
    """Wait for the signal of this number."""
    on_wait(ctx.run_id, f"go {number}")
    await ctx.sleep_until_signal(f"go {number}")
    return f"wait {number}"


@tool(risk="safe", timeout=600)
async def delegate(number: int, task: str, ctx: RunContext) -> str:
    """Ask another run to do a task."""
    return f"delegate {number}: {said(await ctx.ask(SIM, task))}"


@tool(risk="safe", timeout=600)
async def hire(number: int, task: str, ctx: RunContext) -> str:
    """Start another run with a task and wait for its end."""
    return f"hire {number}: {said(await ctx.join(await ctx.spawn(SIM, task)))}"


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
        if broken and current_context().recorder.lease.run.parent_id is None:
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
