"""What a run counts, clears, keeps for itself or seeds of its history: once, and the same in every replay."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django.agents import ReActAgent, load_session_memory, tool
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage, RunContext, ToolUseBlock
from ravi_django.models import Session, Status, Turn
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import code, drive, every_death, make_run, on_postgresql, take_over
from tests.support.world import read_window

pytestmark = pytest.mark.django_db(transaction=True)

HISTORY = DjangoHistoryProvider()
OTHER = AgentId("test", "other")


def add(session, *texts, agent="test/code"):
    async def append():
        messages = [ChatMessage.of("user", text) for text in texts]
        await HISTORY.append_many(AgentId.parse(agent), str(session.id), messages)
        await sync_to_async(connections.close_all)()

    asyncio.run(append())


def session_with(*texts):
    session = world.create_session(Session(agent="test/code"))
    add(session, *texts)
    return session


async def say(ctx, text, agent_id=None):
    await HISTORY.append(agent_id or ctx.agent_id, ctx.session_id, ChatMessage.of("user", text), run_id=ctx.run_id)


@pytest.mark.parametrize("dies", [2, "end"])
def test_a_replay_deletes_nothing_that_was_stored_after_the_clear(clock, dies):
    async def story(ctx, inbox):
        await HISTORY.clear(ctx.agent_id, ctx.session_id)
        await say(ctx, "new")
        await ctx.emit("t", 1)
        await say(ctx, "newer")
        return "done"

    code(story)
    run = take_over(clock, drive(make_run(session=session_with("old")), dies=dies, written=dies == 2))
    assert (run.status, texts()) == (Status.COMPLETED, ["new", "newer"])


def test_a_clear_that_was_not_recorded_has_not_happened(clock):
    async def story(ctx, inbox):
        await say(ctx, "mine")
        await HISTORY.clear(ctx.agent_id, ctx.session_id)
        return "done"

    code(story)
    run = drive(make_run(session=session_with("old")), dies=1)
    assert texts() == ["old"]
    run = take_over(clock, run)
    assert (run.status, texts()) == (Status.COMPLETED, [])


def test_a_count_is_the_same_in_a_replay(clock):
    async def story(ctx, inbox):
        found = [await HISTORY.count(ctx.agent_id, ctx.session_id)]
        if found == [1]:
            await ctx.emit("few", found)
        else:
            await ctx.log("many")
        await say(ctx, "own")
        await ctx.emit("t", 1)
        found.append(await HISTORY.count(ctx.agent_id, ctx.session_id))
        return found

    code(story)
    session = session_with("old")
    run = drive(make_run(session=session), dies=2, written=True)
    add(session, "from elsewhere")
    run = take_over(clock, run)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert run.output == "[1,2]"  # the second one was not recorded


def test_clearing_a_run_leaves_the_turns_of_other_agents(clock):
    async def story(ctx, inbox):
        await say(ctx, "theirs", OTHER)
        await say(ctx, "mine")
        await HISTORY.clear_run(ctx.agent_id, ctx.session_id, ctx.run_id)
        await say(ctx, "mine again")
        await ctx.emit("t", 1)
        return "done"

    code(story)
    run = drive(make_run(session=session_with("before")), dies="end")
    assert texts() == ["before", "theirs", "mine again"]
    run = take_over(clock, run)
    assert (run.status, texts()) == (Status.COMPLETED, ["before", "theirs", "mine again"])


def test_a_worker_without_its_lease_clears_nothing(clock):
    async def story(ctx, inbox):
        await sync_to_async(clock.advance)(10_000)
        await ctx.effects.database.call(world.claim, ctx.effects.lease.run_id, "another")
        await HISTORY.clear(ctx.agent_id, ctx.session_id)

    code(story)
    drive(make_run(session=session_with("old")))
    assert texts() == ["old"]


@tool
async def hold(ctx: RunContext) -> str:
    """Hold."""
    await ctx.sleep_until_signal("go")
    return "held"


def private(*script, retention="run"):
    context = ContextConfig(DjangoHistoryProvider(), retention=retention)
    agent = ReActAgent("private", model=ScriptedModel(list(script)), tools=[hold], context=context)
    return world.register(agent)


def held():
    return ToolUseBlock(tool_name="hold", arguments={}, call_id="c1")


@pytest.mark.parametrize(("retention", "left"), [("run", []), ("permanent", ["hi"])])
@pytest.mark.parametrize("by", ["cancellation", "deadline"])
def test_a_run_that_ends_while_it_waits_takes_its_own_turns_along(clock, retention, left, by):
    private(held(), retention=retention)
    run = drive(make_run("react/private", budget={"deadline_s": 60}))
    assert run.status == Status.SUSPENDED
    assert texts_of_users() == ["hi"]
    if by == "cancellation":
        world.cancel(run.id, "enough")
        run.refresh_from_db()
    else:
        clock.advance(61)
        run = drive(run)
    assert run.status in (Status.FAILED, Status.CANCELLED)
    assert texts_of_users() == left
    assert [message.text for message in read_window(AgentId("react", "private"), run.session_id)][:1] == left


def texts_of_users():
    return [turn.content[0]["text"] for turn in Turn.objects.filter(role="user").order_by("position")]


def test_a_run_that_completes_takes_its_own_turns_along_and_no_other(clock):
    private("fine")
    session = world.create_session(Session(agent="react/private"))
    add(session, "before", agent="react/private")
    run = take_over(clock, drive(make_run("react/private", session=session), dies="end"))
    assert (run.status, run.output) == (Status.COMPLETED, "fine")
    assert texts() == ["before"]


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
