"""Conversations from cold storage, and turns that a run's own code stores: none is lost, none is there twice."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django.agents import ReActAgent, load_session_memory, tool
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import ChatMessage, ToolUseBlock
from ravi_django.models import Session, Status, Turn
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import code, drive, every_death, make_run, on_postgresql, take_over

pytestmark = pytest.mark.django_db(transaction=True)

STEPS = [{"kind": "user_message", "content": "I am Ada"}, {"kind": "assistant_message", "content": "Hello Ada."}]
CALL = ToolUseBlock(tool_name="look", arguments={}, call_id="c1")
WHOLE = ["I am Ada", "Hello Ada.", "who am I?", "", "", "Ada"]


@tool
def look() -> str:
    """Look."""
    return "done"


def texts():
    return [(turn.content[0].get("text") or "") for turn in Turn.objects.order_by("position")]


class Seeding:
    """An agent that has its conversation filled from cold storage, or adds to it, before another one runs on it."""

    def __init__(self, how, *script):
        self.memory = DjangoHistoryProvider()
        self.model = ScriptedModel(list(script))
        self.react = ReActAgent(
            "inner", id="test/code", model=self.model, tools=[look], context=ContextConfig(self.memory)
        )
        self.how = how
        self.agent = code(self.run, model=self.model, tools=[look])

    async def run(self, ctx, inbox):
        if self.how == "load":
            await load_session_memory(ctx.session_id, self.load, self.memory, agent_id=ctx.agent_id)
        else:
            for role, text in (("user", "I am Ada"), ("assistant", "Hello Ada.")):
                await self.memory.append(ctx.agent_id, ctx.session_id, ChatMessage.of(role, text))
        return await self.react.run(ctx, inbox)

    def load(self, session_id):
        return STEPS


@pytest.mark.parametrize("how", ["load", "append"])
def test_what_is_seeded_in_a_run_leaves_its_own_turns_alone(clock, how):
    seeding = Seeding(how, CALL, "Ada")
    run = drive(make_run(text="who am I?"))
    assert (run.status, texts()) == (Status.COMPLETED, WHOLE)
    if how == "load":
        assert [message.text for message in seeding.model.calls[0].messages] == WHOLE[:3]


@pytest.mark.parametrize("how", ["load", "append"])
def test_a_takeover_seeds_nothing_twice(clock, how):
    Seeding(how, CALL, "Ada")
    for run, _ in every_death(clock, lambda drive: drive(make_run(text="who am I?"))):
        assert run.status == Status.COMPLETED
        assert texts()[:4] == WHOLE[:4]
        assert len(texts()) == len(WHOLE)


def test_an_agent_that_runs_twice_in_a_run_keeps_both_conversations(clock):
    memory, model = DjangoHistoryProvider(), ScriptedModel(["one"])
    agents = [
        ReActAgent("inner", id=f"test/{key}", model=model, context=ContextConfig(memory)) for key in ("code", "other")
    ]

    async def both(ctx, inbox):
        for number, agent in enumerate(agents):
            with ctx.scope(f"agent{number}"):
                await agent.run(ctx, inbox)

    code(both, model=model)
    run = drive(make_run(text="hi"), dies=2, written=True)
    take_over(clock, run)
    assert texts() == ["hi", "one", "hi", "one"]


@on_postgresql
def test_several_processes_that_seed_at_once_seed_once():
    session = world.create_session(Session(agent="test/code"))
    together = asyncio.Barrier(3)

    async def load(session_id):
        await together.wait()  # everybody has seen the miss
        return STEPS

    async def seed():
        providers = [DjangoHistoryProvider() for _ in range(3)]
        id = str(session.id)
        await asyncio.gather(*(load_session_memory(id, load, one, agent_id="test/code") for one in providers))
        await sync_to_async(connections.close_all)()

    asyncio.run(seed())
    assert texts() == WHOLE[:2]
    assert Session.objects.get().next_position == 2
