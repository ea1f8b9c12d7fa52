"""Recorded results are handed out in the order they were recorded, to the calls that made them."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django import tool
from ravi_django.kernel import (
    ChatMessage,
    RunContext,
)
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import auntil, code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.fixture
def add(ran):
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        ran.append((a, b))
        return a + b

    return add


@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_a_race_is_won_again_by_its_winner(clock, ran, first):
    won = []
    ends = {}

    @tool
    async def race(name: str) -> str:
        """Race."""
        ran.append(name)
        await ends[name].wait()
        return name

    async def story(ctx, inbox):
        ends.update({name: asyncio.Event() for name in "abc"})
        ends[first].set()
        tasks = [asyncio.create_task(ctx.tool("race", name=name)) for name in "abc"]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        won.append([task.result().text for task in tasks if task in done])
        for event in ends.values():
            event.set()
        await asyncio.wait(tasks)
        return won[-1][0]

    code(story, tools=[race])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert won == [[first], [first]]
    assert run.output == first
    assert len(ran) == 3


def test_a_result_waits_for_those_before_it_however_late_they_are_asked_for(clock):
    won, asked = [], asyncio.Event()

    @tool
    async def step(name: str) -> str:
        """Step: b's is behind a's."""
        await (asked.wait() if name == "b" else asyncio.sleep(0))
        return name

    async def story(ctx, inbox):
        async def later(seconds):
            if won:
                await asyncio.sleep(seconds)

        async def a():
            await later(0.1)
            found = await ctx.tool("step", name="a")
            asked.set()
            return found.text

        async def b():
            await later(0.01)
            return (await ctx.tool("step", name="b")).text

        tasks = [asyncio.create_task(a()), asyncio.create_task(b())]
        won.append([await task for task in asyncio.as_completed(tasks)])

    code(story, tools=[step])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert won == [["a", "b"], ["a", "b"]]
    assert run.status == Status.COMPLETED


def test_the_loser_of_a_race_that_was_cancelled_is_not_missed(clock, ran):
    """Its row was on the way when the winner's was read: it is recorded, and the code cancels its task again."""
    ends = {}

    @tool
    async def race(name: str) -> str:
        """Race."""
        ran.append(name)
        await ends[name].wait()
        return name

    async def story(ctx, inbox):
        ends.update({name: asyncio.Event() for name in "ab"})
        tasks = [asyncio.create_task(ctx.tool("race", name=name)) for name in "ab"]
        if len(ran) < 2:
            await auntil(lambda: len(ran) == 2)
        ends["a"].set()
        ends["b"].set()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return (await ctx.tool("race", name="a")).text

    code(story, tools=[race])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert ran == ["a", "b", "a"]


def test_calls_made_inside_a_recorded_tool_are_not_missed(clock, ran, add):
    """A tool's own calls, times and log entries lie below it; once its result is recorded nobody asks for them."""

    @tool
    async def outer(ctx: RunContext) -> str:
        """Call others."""
        ctx.now()
        await ctx.log("inside", {"x": 1})
        inner = await ctx.tool("add", a=1, b=2)
        return (await ctx.llm([USER])).text + inner.text

    async def story(ctx, inbox):
        first = await ctx.tool("outer")
        return first.text + (await ctx.tool("add", a=5, b=5)).text

    model = ScriptedModel(["hello"])
    agent = code(story, tools=[outer, add], model=model)
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert agent is not None
    assert (run.status, run.output) == (Status.COMPLETED, "hello310"), run.error
    assert (ran, len(model.calls)) == ([(1, 2), (5, 5)], 1)


def test_calls_made_inside_an_unrecorded_tool_are_replayed(clock, ran, add):
    attempts = []

    @tool
    async def outer(ctx: RunContext) -> str:
        """Call another."""
        attempts.append(ctx.idempotency_key)
        return (await ctx.tool("add", a=1, b=2)).text

    async def story(ctx, inbox):
        return (await ctx.tool("outer")).text

    code(story, tools=[outer, add])
    run = drive(make_run(), dies=2)  # the inner call is recorded, the outer one is not

    run = take_over(clock, run)

    assert (run.output, ran) == ("3", [(1, 2)])
    assert len(attempts) == 2
    assert len(set(attempts)) == 1


def test_tasks_of_library_code_do_not_disturb_the_numbering(clock, ran, add):
    """A model's client makes tasks while it streams, a tool too; in the replay neither runs."""

    async def busy_with():
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))

    class BusyModel(ScriptedModel):
        async def stream(self, messages, options, meta):
            await busy_with()
            async for event in super().stream(messages, options, meta):
                yield event

    @tool
    async def busy() -> str:
        """Make tasks."""
        await busy_with()
        return "x"

    async def story(ctx, inbox):
        await ctx.llm([USER])
        await ctx.tool("busy")
        found = await asyncio.gather(ctx.tool("add", a=1, b=1), ctx.tool("add", a=2, b=2))
        return "".join(result.text for result in found)

    code(story, tools=[add, busy], model=BusyModel(["x"]))
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert (run.output, run.status) == ("24", Status.COMPLETED)
    assert ran == [(1, 1), (2, 2)]
    made = [entry.path for entry in journal_of(run) if entry.kind in ("tool.call", "llm.call")]
    assert sorted(made) == ["1", "2", "t1.1", "t2.1"]
