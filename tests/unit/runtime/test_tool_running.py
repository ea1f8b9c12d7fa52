"""Where and with what a tool's code runs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from ravi_django import signal, tool
from ravi_django.kernel import CancellationError, RunContext
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.gates import cancelled_in
from tests.support.patience import seconds
from tests.support.runs import auntil, code, drive, make_run, take_over
from tests.support.tool_calls import output_of

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


def test_sync_tools_run_at_once_and_off_the_loop(ran):
    together = threading.Barrier(5)

    @tool
    def meet(number: int) -> str:
        together.wait(seconds(10))
        ran.append(threading.current_thread().name)
        return str(number)

    async def story(ctx, inbox):
        found = await asyncio.gather(*(ctx.tool("meet", number=number) for number in range(5)))
        return "".join(result.text for result in found)

    code(story, tools=[meet])
    assert drive(make_run()).output == "01234"
    assert len(set(ran)) == 5
    assert all(name.startswith("ravi-tool") for name in ran)


def test_a_sync_tool_may_use_the_database_and_leaves_no_connection_open(ran):
    @tool
    def count() -> int:
        ran.append(connections["default"])
        return Group.objects.count()

    assert output_of(count) == "ok: 0"
    assert ran[0].connection is None


def test_the_context_is_injected_and_hidden_from_the_model():
    @tool
    def who(name: str, ctx: RunContext) -> str:
        return f"{name} in {ctx.agent_id}"

    assert "ctx" not in who.parameters["properties"]
    assert output_of(who, name="ann") == "ok: ann in test/code"
    assert output_of(who, name="ann", ctx="forged").startswith("error: ")


def test_the_models_id_of_the_call_comes_back_with_the_result(clock):
    async def story(ctx, inbox):
        with ctx.scope("turn1.call0", call_id="call_7"):
            return (await ctx.tool("divide", a=1, b=2)).call_id

    code(story, tools=[divide])
    run = drive(make_run(), dies="end")
    assert take_over(clock, run).output == "call_7"
    assert JournalEntry.objects.get(kind="tool.call").request["call_id"] == "call_7"


@pytest.fixture
def no_grace(monkeypatch):
    world.patch(monkeypatch, "GRACE_S", 0.05)


def stubborn(ran, **options):
    """A tool that swallows every cancellation, until it is let go."""

    @tool(**options)
    async def stay(ctx: RunContext) -> str:
        ran.append("began")
        while "go" not in ran:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)
        with suppress(CancellationError):
            await ctx.tool("divide", a=1, b=2)
            ran.append("called")
        ran.append("ended")
        return "stayed"

    return stay


@pytest.mark.parametrize("outlives", [True, False])
def test_an_async_tool_that_swallows_its_cancellation_is_left_to_itself(outlives, no_grace, ran, caplog, clock):
    async def story(ctx, inbox):
        found = await ctx.tool("stay")
        ran.append("go")
        if outlives:
            await auntil(lambda: "ended" in ran)
        return f"{found.status}: {found.text}; {(await ctx.tool('divide', a=4, b=2)).text}"

    code(story, tools=[stubborn(ran, timeout=0.05), divide])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.output == "error: stay did not finish within 0.05 s; 2.0"
    assert (ran.count("began"), "called" in ran) == (1, False)
    assert [row.path for row in journal_of(run) if row.kind == "tool.call"] == ["1", "2"]
    assert "tool.task_left" in [getattr(record, "action", "") for record in caplog.records]


def test_cancelling_a_run_gets_through_a_tool_that_swallows_it(no_grace, ran, clock):
    async def story(ctx, inbox):
        try:
            return (await ctx.tool("stay")).text
        finally:
            ran.append("go")  # or the loop could not be closed

    run = cancelled_in(make_run(), story, tools=[stubborn(ran)], began=lambda: ran)
    assert run.status == Status.CANCELLED
    assert ran[:2] == ["began", "go"]


def test_an_async_tools_calls_are_numbered_below_it_and_replayed(clock, ran):
    @tool
    async def below(ctx: RunContext) -> str:
        first = await ctx.tool("divide", a=4, b=2)
        others = await asyncio.gather(*(ctx.tool("divide", a=number, b=number) for number in (1, 2)))
        await ctx.sleep_until_signal("go")
        ran.append("below")
        return ",".join(result.text for result in [first, *others])

    async def story(ctx, inbox):
        found = await asyncio.gather(*(ctx.tool("below") for _ in range(2)))
        return " ".join(result.text for result in found)

    code(story, tools=[below, divide])
    run = drive(make_run())
    assert (run.status, ran) == (Status.SUSPENDED, [])
    paths = {row.path for row in journal_of(run) if row.kind == "tool.call"}
    for _ in range(2):
        signal(run.id, "go")
    run = drive(run)
    assert run.output == "2.0,1.0,1.0 2.0,1.0,1.0"
    assert paths == {f"t{one}.1/{two}" for one in (1, 2) for two in ("1", "t1.1", "t2.1")}


def test_a_cancellation_that_comes_when_the_tool_has_ended_leaves_its_result_and_gets_through(ran, step):
    async def story(ctx, inbox):
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        try:
            await ctx.tool("step", name="done")
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            return "cancelled"
        return "not cancelled"

    code(story, tools=[step])
    run = drive(make_run())
    assert (run.output, ran) == ("cancelled", ["done"])
