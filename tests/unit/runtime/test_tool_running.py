"""Where and with what a tool's code runs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.kernel import RunContext
from ravi_django.models import JournalEntry
from tests.support.runs import code, drive, make_run, take_over
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
        """Meet."""
        together.wait(10)
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
        """Count."""
        ran.append(connections["default"])
        return Group.objects.count()

    assert output_of(count) == "ok: 0"
    assert ran[0].connection is None


def test_the_context_is_injected_and_hidden_from_the_model():
    @tool
    def who(name: str, ctx: RunContext) -> str:
        """Who."""
        return f"{name} in {ctx.agent_id}"

    assert "ctx" not in who.parameters["properties"]
    assert output_of(who, name="ann") == "ok: ann in test/code"


def test_a_tool_without_arguments_of_its_own_takes_none():
    @tool
    def now(ctx: RunContext) -> str:
        """Now."""
        return "now"

    assert output_of(now, ctx="forged").startswith("error: ")


def test_the_models_id_of_the_call_comes_back_with_the_result(clock):
    async def story(ctx, inbox):
        with ctx.scope("turn1.call0", call_id="call_7"):
            return (await ctx.tool("divide", a=1, b=2)).call_id

    code(story, tools=[divide])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "call_7"
    assert JournalEntry.objects.get(kind="tool.call").request["call_id"] == "call_7"


def test_time_spent_is_on_the_row():
    @tool
    def work() -> str:
        """Work."""
        begun = time.monotonic()
        while time.monotonic() - begun < 0.05:
            pass
        return ""

    output_of(work)

    row = JournalEntry.objects.get(kind="tool.call")
    assert 0.05 <= (row.finished_at - row.started_at).total_seconds() < conf.TOOL_TIMEOUT_S
