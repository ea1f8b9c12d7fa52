"""A worker that shuts down lets open calls finish, starts nothing new and gives its runs back, blaming none."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, RunContext
from ravi_django.models import Status
from ravi_django.testing import journal_of
from tests.support.arriving import arrive
from tests.support.gates import Gate, drained
from tests.support.runs import adrive, code, drive, make_run, take_over
from tests.support.world import Engine

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.mark.sqlite
def test_a_drained_worker_records_what_is_open_and_starts_nothing_new(clock, ran, step):
    async def story(ctx, inbox):
        first = await ctx.tool("step", name="first")
        held = await ctx.tool("hold")
        last = await ctx.tool("step", name="last")
        return first.text + held.text + last.text

    run = drained(make_run(), story, tools=[step], while_draining=lambda gate: gate.open.set())

    assert ran == ["first"]
    assert (run.status, run.crashes, run.attempts, run.wake_at) == (Status.PENDING, 0, 0, None)
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["step", "hold"]
    drive(run)
    assert (run.status, run.output, run.crashes) == (Status.COMPLETED, "firstholdlast", 0)
    assert ran == ["first", "last"]


def test_a_call_that_outlasts_the_drain_is_left_and_made_again(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        return (await ctx.tool("hold")).text

    run = drained(make_run(), story, tools=[step], drain_s=0.05)

    assert (run.status, run.crashes) == (Status.PENDING, 0)
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["step"]


def test_a_run_that_ends_while_its_worker_drains_is_completed(clock):
    async def story(ctx, inbox):
        return (await ctx.tool("hold")).text

    run = drained(make_run(), story, while_draining=lambda gate: gate.open.set())

    assert (run.status, run.output) == (Status.COMPLETED, "hold")


def test_a_message_that_the_code_has_not_received_outlives_a_drain(clock, ran, step):
    """It arrived in an earlier lease, behind the round that this lease replays."""
    rounds = []

    async def story(ctx, inbox):
        rounds.append([message.payload.message.text for message in inbox])
        await ctx.tool("step", name=inbox[0].payload.message.text)
        if ctx.effects.lease.epoch == 2:
            ctx.effects.drain()
        return "done"

    code(story, tools=[step])
    run = drive(make_run(), dies="end")
    arrive(run, "second")

    drained_run = take_over(clock, run)

    assert drained_run.status == Status.PENDING
    assert drive(run).status == Status.COMPLETED
    assert rounds[-1] == ["second"]


def test_what_an_open_tool_call_needs_may_begin_while_its_worker_drains(clock, ran, step):
    @tool(timeout=30)
    async def outer(ctx: RunContext) -> str:
        """Call two others, one after the other."""
        held = await ctx.tool("hold")
        return held.text + (await ctx.tool("step", name="inner")).text

    async def story(ctx, inbox):
        outer = await ctx.tool("outer")
        return outer.text + (await ctx.tool("step", name="last")).text

    run = drained(make_run(), story, tools=[step, outer], while_draining=lambda gate: gate.open.set())

    assert (run.status, ran) == (Status.PENDING, ["inner"])
    assert [entry.name for entry in journal_of(run) if entry.kind == "tool.call"] == ["hold", "step", "outer"]
    assert drive(run).output == "holdinnerlast"


def test_a_draining_worker_claims_nothing():
    run = make_run()

    async def main():
        engine = Engine()
        await engine.close()
        assert not await engine.drive(run.id)
        assert engine.hint(run.id) is None
        engine.look()

    asyncio.run(main())
    run.refresh_from_db()
    assert run.status == Status.PENDING


def test_turns_and_notes_in_hand_are_written_when_a_worker_drains(clock):
    async def story(ctx, inbox):
        await ctx.tool("hold")
        await ctx.log("note", 1)
        ctx.now()
        await ctx.tool("hold", name="again")

    run = drained(make_run(), story, while_draining=lambda gate: gate.open.set())

    assert [entry.kind for entry in journal_of(run)] == ["run.started", "tool.call", "log", "now"]
    assert drive_with_open_gate(run) == Status.COMPLETED


def drive_with_open_gate(run):
    """The next lease of a run that `drained` drove, with a call that ends at once."""
    from tests.support.world import get_agent

    async def main():
        gate = Gate()
        gate.open.set()
        get_agent(run.agent).tools[0] = gate.tool()
        await adrive(run)

    asyncio.run(main())
    run.refresh_from_db()
    return run.status
