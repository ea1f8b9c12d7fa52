"""Text and numbers that no row can hold do not poison a run."""

from __future__ import annotations

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, DataBlock, ToolUseBlock
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling, phases

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


class Odd:
    def __str__(self):
        return "an odd thing"


@pytest.mark.parametrize("text", ["nul \x00 in it", "half a pair \ud800"], ids=["nul", "surrogate"])
@pytest.mark.parametrize("block", [False, True])
def test_text_that_no_row_can_hold_does_not_poison_the_run(text, block):
    @tool
    def read():
        """Read a binary file."""
        return DataBlock(data={"text": text}) if block else text

    code(calling("read"), tools=[read])

    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.status
    assert phases() == ["result"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_json_do_not_poison_the_run(number):
    @tool
    def measure():
        """Measure."""
        return DataBlock(data={"x": number})

    code(calling("measure"), tools=[measure])

    assert drive(make_run()).status == Status.COMPLETED


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_arguments_that_are_not_json_do_not_poison_the_run(number, clock, ran):
    @tool
    def note(x):
        """Note."""
        ran.append(x)
        return "noted"

    async def story(ctx, inbox):
        response = await ctx.llm([ChatMessage.of("user", "hi")])
        call = response.message.tool_calls[0]
        return (await ctx.tool(call.tool_name, **call.arguments)).text

    call = ToolUseBlock(tool_name="note", arguments={"x": [number]}, call_id="c1")
    code(story, model=ScriptedModel([call]), tools=[note])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "noted"
    assert ran == [[None]]


def test_a_model_that_says_what_no_row_can_hold_does_not_poison_the_run():
    async def story(ctx, inbox):
        return (await ctx.llm([ChatMessage.of("user", "hi")])).text

    code(story, model=ScriptedModel(["nul \x00 in it"]))

    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.status
    assert run.output.startswith("nul ")


def test_text_that_was_mended_for_its_row_replays_as_it_was(clock):
    seen = []

    @tool
    def echo(text: str) -> str:
        """Echo."""
        return text + "\x00"

    async def story(ctx, inbox):
        said = (await ctx.llm([ChatMessage.of("user", "hi")])).text
        seen.append((said, (await ctx.tool("echo", text=said)).text, (await ctx.tool("echo", text="\x00")).text))
        await ctx.log("note", {"text": "\x00 \ud800", "odd": Odd(), "$blob": 1})

    code(story, model=ScriptedModel(["a \x00 \ud800"]), tools=[echo])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert seen == [("a \ufffd ?", "a \ufffd ?\ufffd", "\ufffd\ufffd")] * 2


def test_a_log_entry_may_look_like_a_reference_to_a_blob(clock):
    async def story(ctx, inbox):
        await ctx.log("note", {"$blob": "nowhere", "size": 1})
        await ctx.tool("divide", a=1, b=1)
        return "done"

    code(story, tools=[divide])
    run = drive(make_run(), dies="end")

    assert take_over(clock, run).output == "done"


@pytest.mark.parametrize("error", [ValueError("nul \x00"), ValueError("half \ud800")], ids=["nul", "surrogate"])
def test_an_error_that_no_row_can_hold_does_not_poison_the_run(error):
    async def story(ctx, inbox):
        raise error

    code(story)

    assert drive(make_run()).status == Status.FAILED


def test_an_output_that_no_row_can_hold_does_not_poison_the_run():
    async def story(ctx, inbox):
        return "nul \x00 and \ud800"

    code(story)

    assert drive(make_run()).status == Status.COMPLETED


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [51, 300, 5000])
@pytest.mark.parametrize("dies", [None, "end"])
def test_arguments_nested_too_deep_are_told_to_the_model(depth, dies, clock, ran):
    @tool
    def take(tree: list):
        """Take."""
        ran.append(tree)

    async def story(ctx, inbox):
        found = await ctx.tool("take", tree=nested(depth))
        return found.text

    code(story, tools=[take])
    run = drive(make_run(), dies=dies)
    if dies:
        run = take_over(clock, run)

    assert run.output == "the arguments were not valid JSON: they are nested more than 50 levels deep"
    assert ran == []


@pytest.mark.parametrize("dies", [None, "end"])
def test_a_model_that_nests_its_arguments_deep_does_not_fail_the_run(dies, clock, ran):
    @tool
    def take(tree: list):
        """Take."""
        ran.append(tree)

    model = ScriptedModel([ToolUseBlock(tool_name="take", arguments={"tree": nested(120)}, call_id="1"), "done"])

    async def story(ctx, inbox):
        asked = (await ctx.llm([ChatMessage.of("user", "hi")])).message.tool_calls[0]
        return (await ctx.tool(asked.tool_name, **asked.arguments)).text

    code(story, tools=[take], model=model)
    run = drive(make_run(), dies=dies)
    if dies:
        run = take_over(clock, run)

    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert "nested more than 50 levels deep" in run.output
