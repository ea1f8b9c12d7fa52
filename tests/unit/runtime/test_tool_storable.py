"""Where and with what a tool's code runs; text and numbers that no row can hold do not poison a run."""

import asyncio
import threading
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from ravi_django import signal, tool
from ravi_django.kernel import CancellationError, ChatMessage, RunContext, ToolUseBlock
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.gates import cancelled_in
from tests.support.patience import seconds
from tests.support.runs import auntil, code, drive, make_run, take_over
from tests.support.tool_calls import calling, output_of, phases

pytestmark = pytest.mark.django_db(transaction=True)


class Odd:
    def __str__(self):
        return "an odd thing"


def test_arguments_that_are_not_json_do_not_poison_the_run(clock, ran):
    @tool
    def note(x):
        ran.append(x)
        return "noted"

    async def story(ctx, inbox):
        response = await ctx.llm([ChatMessage.of("user", "hi")])
        call = response.message.tool_calls[0]
        return (await ctx.tool(call.tool_name, **call.arguments)).text

    call = ToolUseBlock(tool_name="note", arguments={"x": [float("nan")]}, call_id="c1")
    code(story, model=ScriptedModel([call]), tools=[note])
    run = drive(make_run(), dies="end")
    assert take_over(clock, run).output == "noted"
    assert ran == [[None]]


def test_text_that_was_mended_for_its_row_replays_as_it_was(clock):
    seen = []

    @tool
    def echo(text: str) -> str:
        return text + "\x00"

    async def story(ctx, inbox):
        said = (await ctx.llm([ChatMessage.of("user", "hi")])).text
        seen.append((said, (await ctx.tool("echo", text=said)).text, (await ctx.tool("echo", text="\x00")).text))
        await ctx.log("note", {"text": "\x00 \ud800", "odd": Odd(), "$blob": 1})
        await ctx.log("like a reference to a blob", {"$blob": "nowhere", "size": 1})
        await ctx.tool("echo", text="behind it")

    code(story, model=ScriptedModel(["a \x00 \ud800"]), tools=[echo])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.status == Status.COMPLETED, run.error
    assert seen == [("a \ufffd ?", "a \ufffd ?\ufffd", "\ufffd\ufffd")] * 2


@pytest.mark.parametrize("text", ["nul \x00", "half \ud800"], ids=["nul", "surrogate"])
def test_an_error_or_an_output_that_no_row_can_hold_does_not_poison_the_run(text):
    for fails in (True, False):

        async def story(ctx, inbox, fails=fails):
            if fails:
                raise ValueError(text)
            return text

        code(story)
        assert drive(make_run()).status == (Status.FAILED if fails else Status.COMPLETED)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_arguments_nested_too_deep_are_told_to_the_model(clock, ran):
    @tool
    def take(tree: list):
        ran.append(tree)

    async def story(ctx, inbox):
        found = [await ctx.tool("take", tree=nested(depth)) for depth in (51, 300, 5000)]
        call = (await ctx.llm([ChatMessage.of("user", "hi")])).message.tool_calls[0]
        return "\n".join(result.text for result in [*found, await ctx.tool(call.tool_name, **call.arguments)])

    asked = ToolUseBlock(tool_name="take", arguments={"tree": nested(120)}, call_id="1")
    code(story, tools=[take], model=ScriptedModel([asked]))
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.status, run.error, ran) == (Status.COMPLETED, None, [])
    words = "the arguments were not valid JSON: they are nested more than 50 levels deep"
    assert run.output.splitlines()[:3] == [words] * 3
    assert "nested more than 50 levels deep" in run.output.splitlines()[3]


@tool
def divide(a: int, b: int) -> float:
    return a / b


def test_an_error_bad_arguments_and_an_unknown_tool_are_told_to_the_model(clock):
    assert output_of(divide, a=1, b=0) == "error: ZeroDivisionError: division by zero"
    assert output_of(divide, a="many", b=2).startswith("error: ")
    assert phases() == ["result", "result"]
    code(calling("multiply", a=1), tools=[divide])
    assert drive(make_run()).output == "error: there is no tool 'multiply'; the tools are: divide"
    code(calling("x" * 300 + "\x00"), tools=[divide])  # a name that a model made up may be as it likes
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.status, run.output[:27]) == (Status.COMPLETED, "error: there is no tool 'xx")


def test_a_huge_result_is_cut_with_a_marker_and_one_at_the_limit_is_whole(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read(count: int) -> str:
        return "é" * count

    assert output_of(read, count=600) == "ok: " + "é" * 500 + "\n[cut here: 200 of 1200 bytes left out]"
    assert output_of(read, count=500) == "ok: " + "é" * 500


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


def test_a_sync_tool_may_use_the_database_and_its_context_which_the_model_does_not_see(ran):
    @tool
    def count(name: str, ctx: RunContext) -> str:
        ran.append(connections["default"])
        return f"{name} in {ctx.agent_id}: {Group.objects.count()}"

    assert "ctx" not in count.parameters["properties"]
    assert output_of(count, name="ann") == "ok: ann in test/code: 0"
    assert ran[0].connection is None, "no connection stays open"
    assert output_of(count, name="ann", ctx="forged").startswith("error: ")


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
