"""What a run counts, clears, or keeps for itself alone: once, and the same in every replay."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage, RunContext, ToolUseBlock
from ravi_django.models import Session, Status, Turn
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over
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


def texts():
    return [turn.content[0]["text"] for turn in Turn.objects.order_by("position")]


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
