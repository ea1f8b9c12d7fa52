"""Text and numbers that no row can hold do not poison a run."""

from __future__ import annotations

import pytest

from ravi_django import tool
from ravi_django.kernel import ChatMessage, ToolUseBlock
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling, output_of, phases

pytestmark = pytest.mark.django_db(transaction=True)


class Odd:
    def __str__(self):
        return "an odd thing"


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_arguments_that_are_not_json_do_not_poison_the_run(number, clock, ran):
    @tool
    def note(x):
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
    async def fails(ctx, inbox):
        raise ValueError(text)

    async def says(ctx, inbox):
        return text

    for story, status in ((fails, Status.FAILED), (says, Status.COMPLETED)):
        code(story)
        assert drive(make_run()).status == status


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("dies", [None, "end"])
def test_arguments_nested_too_deep_are_told_to_the_model(dies, clock, ran):
    @tool
    def take(tree: list):
        ran.append(tree)

    async def story(ctx, inbox):
        found = [await ctx.tool("take", tree=nested(depth)) for depth in (51, 300, 5000)]
        call = (await ctx.llm([ChatMessage.of("user", "hi")])).message.tool_calls[0]
        return "\n".join(result.text for result in [*found, await ctx.tool(call.tool_name, **call.arguments)])

    asked = ToolUseBlock(tool_name="take", arguments={"tree": nested(120)}, call_id="1")
    code(story, tools=[take], model=ScriptedModel([asked]))
    run = drive(make_run(), dies=dies)
    if dies:
        run = take_over(clock, run)
    assert (run.status, run.error, ran) == (Status.COMPLETED, None, [])
    words = "the arguments were not valid JSON: they are nested more than 50 levels deep"
    assert run.output.splitlines()[:3] == [words] * 3
    assert "nested more than 50 levels deep" in run.output.splitlines()[3]


@tool
def divide(a: int, b: int) -> float:
    return a / b


def test_an_error_bad_arguments_and_an_unknown_tool_are_told_to_the_model():
    assert output_of(divide, a=1, b=0) == "error: ZeroDivisionError: division by zero"
    assert output_of(divide, a="many", b=2).startswith("error: ")
    assert phases() == ["result", "result"]
    code(calling("multiply", a=1), tools=[divide])
    assert drive(make_run()).output == "error: there is no tool 'multiply'; the tools are: divide"


def test_a_name_that_a_model_made_up_may_be_as_it_likes(clock):
    code(calling("x" * 300 + "\x00"), tools=[divide])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.status, run.output[:27]) == (Status.COMPLETED, "error: there is no tool 'xx")


def test_a_huge_result_is_cut_with_a_marker_and_one_at_the_limit_is_whole(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read(count: int) -> str:
        return "é" * count

    assert output_of(read, count=600) == "ok: " + "é" * 500 + "\n[cut here: 200 of 1200 bytes left out]"
    assert output_of(read, count=500) == "ok: " + "é" * 500
