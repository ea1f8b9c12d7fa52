"""Whatever a tool does or gives back, the model is told, and the run can go on."""

from __future__ import annotations

import asyncio

import pytest
from django.contrib.auth.models import Permission, User

from ravi_django import tool
from ravi_django.kernel import TextBlock, ToolExecutionResult
from ravi_django.models import Status
from ravi_django.testing import journal_of
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling, output_of, phases

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


def test_arguments_that_do_not_fit_are_told_to_the_model_and_not_run():
    answer = output_of(divide, a="many", b=2)

    assert answer.startswith("error: ")
    assert "a" in answer
    assert phases() == ["result"]


def test_a_tool_that_raises_tells_the_model():
    assert output_of(divide, a=1, b=0) == "error: ZeroDivisionError: division by zero"


def test_a_tool_that_hangs_tells_the_model():
    @tool(timeout=0.05)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()

    assert output_of(hang) == "error: hang did not finish within 0.05 s"


def test_an_unknown_tool_is_named_with_those_that_there_are():
    code(calling("multiply", a=1), tools=[divide])

    assert drive(make_run()).output == "error: there is no tool 'multiply'; the tools are: divide"


def test_a_name_that_a_model_made_up_may_be_as_it_likes(clock):
    name = "x" * 300 + "\x00"
    code(calling(name), tools=[divide])
    run = drive(make_run(), dies="end")

    run = take_over(clock, run)

    assert (run.status, run.output[:27]) == (Status.COMPLETED, "error: there is no tool 'xx")


@pytest.mark.parametrize("may", [True, False, None])
def test_a_permission_is_asked_of_the_runs_owner(may):
    @tool(permission="auth.add_group")
    def secret() -> str:
        """Secret."""
        return "told"

    owner = None if may is None else User.objects.create_user("ann")
    if may:
        owner.user_permissions.add(Permission.objects.get(codename="add_group"))
    code(calling("secret"), tools=[secret])

    run = drive(make_run(owner=owner))

    refusal = "error: not permitted: secret needs the permission auth.add_group, which the run's owner does not have"
    assert run.output == ("ok: told" if may else refusal)


def test_a_run_has_a_limit_of_tool_calls(settings, clock):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 3}

    async def story(ctx, inbox):
        return " ".join([(await ctx.tool("divide", a=number, b=1)).status for number in range(5)])

    code(story, tools=[divide])
    run = drive(make_run(), dies=3)

    run = take_over(clock, run)  # those of the first lease count too

    assert run.output == "ok ok ok error error"
    assert "the run's limit of 3 tool calls is reached" in str(journal_of(run)[-2].result)


def test_a_huge_result_is_cut_with_a_marker(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read() -> str:
        """Read."""
        return "é" * 600

    answer = output_of(read)

    assert answer.startswith("ok: " + "é" * 500 + "\n")
    assert answer.endswith("\n[cut here: 200 of 1200 bytes left out]")


def test_a_result_at_the_limit_is_whole(settings):
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 1000}

    @tool
    def read() -> str:
        """Read."""
        return "é" * 500

    assert output_of(read) == "ok: " + "é" * 500


class Odd:
    def __str__(self):
        return "an odd thing"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, ""),
        (0, "0"),
        (False, "false"),
        ([1, "a", None], '[1,"a",null]'),
        ({"b": 1, "a": [2.5]}, '{"b":1,"a":[2.5]}'),
        (Odd(), '"an odd thing"'),
        ({"odd": Odd()}, '{"odd":"an odd thing"}'),
        ({1}, "[1]"),
        (b"bytes", "bytes"),
        (TextBlock(text="block"), "block"),
        ([TextBlock(text="two "), TextBlock(text="blocks")], "two \nblocks"),
        (ToolExecutionResult(content=[TextBlock(text="result")]), "result"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_return_value_becomes_content(value, text):
    @tool
    def give():
        """Give."""
        return value

    assert output_of(give).removeprefix("ok: ").replace("\n", "") == text.replace("\n", "")
