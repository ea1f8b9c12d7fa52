"""`ask_human`, the tool: it waits inside its own call, and whatever becomes of the question is told to the model."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from ravi_django.agents import ReActAgent
from ravi_django.kernel import Effect, InvalidInputError, Risk, ToolUseBlock
from ravi_django.models import HumanRequest, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling
from tests.support.world import AskHumanTool, register

pytestmark = pytest.mark.django_db(transaction=True)


def questions(run):
    return list(HumanRequest.objects.filter(run=run).order_by("id"))


def asking(tool=None, **arguments):
    code(calling("ask_human", question="Which colour?", **arguments), tools=[tool or AskHumanTool()])


def test_it_is_safe_and_may_be_called_again():
    tool = AskHumanTool()

    assert (tool.name, tool.promised_effect, tool.risk) == ("ask_human", Effect.IDEMPOTENT, Risk.SAFE)
    assert sorted(tool.parameters["properties"]) == ["choices", "context", "free_text", "question"]
    assert tool.parameters["required"] == ["question"]


def test_the_tool_is_called_again_after_the_answer_and_asks_nobody_twice():
    asking(context="For the door.", choices=["red", "blue"])
    run = drive(make_run())
    request = asked(run)
    assert (request.tool, request.text, request.choices) == ("ask_human", "Which colour?", ["red", "blue"])

    world.answer(request.id, text="blue")
    run = drive(run)

    assert (run.output, len(questions(run))) == ("ok: The person answered: blue", 1)
    rows = [(row.kind, row.phase) for row in journal_of(run) if row.kind in ("tool.call", "ask_human")]
    assert rows == [("ask_human", "started"), ("ask_human", "result"), ("tool.call", "result")]


@pytest.mark.parametrize(("dies", "written"), [(1, False), (1, True)])
def test_a_worker_that_dies_over_the_question_asks_it_once(clock, dies, written):
    asking()
    run = take_over(clock, drive(make_run(), dies=dies, written=written))

    world.answer(asked(run).id, text="red")

    assert (drive(run).output, len(questions(run))) == ("ok: The person answered: red", 1)


@pytest.mark.parametrize(("dies", "written"), [(1, False), (1, True), (2, False), (2, True), ("end", False)])
def test_a_worker_that_dies_over_the_answer_gives_the_same_result(clock, dies, written):
    asking()
    run = drive(make_run())
    world.answer(asked(run).id, text="red")
    drive(run, dies=dies, written=written)

    run = take_over(clock, run)

    assert (run.output, len(questions(run))) == ("ok: The person answered: red", 1)
    assert [row.kind for row in journal_of(run)].count("tool.call") == 1


@pytest.mark.parametrize(("action", "words"), [("skip", "skipped the question"), ("cancel", "do not ask it again")])
def test_a_question_that_is_not_answered_is_told_in_words(action, words):
    asking()
    run = drive(make_run())

    world.answer(asked(run).id, action)

    output = drive(run).output
    assert output.startswith("ok: ") and words in output


@pytest.mark.parametrize("within", [60, timedelta(minutes=1)])
def test_a_question_that_expires_is_no_consent(clock, within):
    asking(AskHumanTool(answer_within=within))
    run = drive(make_run())
    clock.advance(61)

    assert "no consent" in drive(run).output


def test_a_run_asks_three_questions_and_no_more():
    async def story(ctx, inbox):
        return [(await ctx.tool("ask_human", question=f"Question {number}?")).status for number in range(4)]

    code(story, tools=[AskHumanTool()])
    run = drive(make_run())
    for _ in range(3):
        world.answer(asked(run).id, text="yes")
        run = drive(run)

    assert (run.output, len(questions(run))) == ('["ok","ok","ok","error"]', 3)
    assert [(row.kind, row.phase) for row in journal_of(run)].count(("ask_human", "started")) == 3


@pytest.mark.parametrize("dies", [None, 2, 3])
def test_of_questions_at_once_no_more_than_the_limit_are_asked(clock, dies):
    async def story(ctx, inbox):
        calls = [ctx.tool("ask_human", question=f"Question {number}?") for number in range(4)]
        results = await asyncio.gather(*calls)
        return sorted(result.status for result in results)

    code(story, tools=[AskHumanTool(max_per_run=2)])
    run = drive(make_run(), dies=dies)
    if dies is not None:
        run = take_over(clock, run)

    assert (run.status, len(questions(run))) == (Status.SUSPENDED, 2)
    for request in questions(run):
        world.answer(request.id, text="yes")
    run = drive(run)
    assert (run.output, len(questions(run))) == ('["error","error","ok","ok"]', 2)


def test_the_agents_own_questions_do_not_count():
    async def story(ctx, inbox):
        await ctx.ask_human("My own?")
        return (await ctx.tool("ask_human", question="The model's?")).status

    code(story, tools=[AskHumanTool(max_per_run=1)])
    run = drive(make_run())
    world.answer(asked(run).id, text="yes")
    run = drive(run)
    world.answer(asked(run).id, text="yes")

    assert drive(run).output == "ok"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"choices": ["red"]}, "choices"),
        ({"choices": ["a", "b", "c", "d"]}, "choices"),
        ({"choices": ["red", "red"]}, "choices must differ"),
        ({"free_text": False}, "needs choices"),
        ({"question": ""}, "question"),
        ({"question": "  "}, "question is a text"),
    ],
)
def test_a_bad_question_goes_back_to_the_model(arguments, words):
    code(calling("ask_human", **{"question": "Which colour?", **arguments}), tools=[AskHumanTool()])

    run = drive(make_run())

    assert run.output.startswith("error: ") and words in run.output
    assert questions(run) == []


@pytest.mark.parametrize("most", [0, True, "3"])
def test_a_bad_limit_is_refused(most):
    with pytest.raises(InvalidInputError, match="max_per_run"):
        AskHumanTool(max_per_run=most)


def test_two_calls_of_one_turn_each_get_their_answer(clock):
    calls = [
        ToolUseBlock(tool_name="ask_human", arguments={"question": f"{name}?"}, call_id=name) for name in ("one", "two")
    ]
    model = ScriptedModel([calls, "Thank you."])
    register(ReActAgent("asker", model=model, tools=[AskHumanTool()]))
    run = drive(make_run("react/asker"))
    first, second = sorted(questions(run), key=lambda request: request.text)

    world.answer(second.id, text="2")
    run = drive(run)
    assert run.status == Status.SUSPENDED
    world.answer(first.id, text="1")
    run = drive(run)

    assert (run.output, len(model.calls)) == ("Thank you.", 2)
    results = {block.call_id: block.content[0].text for block in model.calls[1].messages[-1].content}
    assert results == {"one": "The person answered: 1", "two": "The person answered: 2"}


# ---------------------------------------------------------------------------------------------- the commands


def test_the_commands_list_and_answer_a_question(django_user_model):
    ann = django_user_model.objects.create_user("ann")
    asking(context="For the door.", choices=["red", "blue"], free_text=False)
    run = drive(make_run(owner=ann))
    request = asked(run)
    out = StringIO()

    call_command("ravi_requests", stdout=out)
    assert str(request.id) in out.getvalue()
    for shown in ("question", "Which colour?", "For the door.", "one of: red | blue"):
        assert shown in out.getvalue()
    with pytest.raises(CommandError, match="one of 'red', 'blue'"):
        call_command("ravi_answer", str(request.id), "answer", "green")
    call_command("ravi_answer", str(request.id), "answer", "red", "--user", "ann", stdout=out)

    assert f"ravi_answer: answer; run {run.id} goes on" in out.getvalue()
    request.refresh_from_db()
    assert (request.answer["by"], drive(run).output) == ("ann", "ok: The person answered: red")


@pytest.mark.parametrize("action", ["skip", "cancel"])
def test_the_command_skips_and_cancels(action):
    asking()
    run = drive(make_run())

    call_command("ravi_answer", str(asked(run).id), action, stdout=StringIO())

    assert questions(run)[0].answer["action"] == action


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "say what becomes of it"),
        (["answer"], "needs a text"),
        (["skip", "words"], "goes with answer"),
        (["answer", "red", "--fail"], "not both"),
        (["--fail"], "of kind question"),
        (["answer", "red", "--user", "nobody"], "no user"),
    ],
)
def test_the_command_refuses_what_makes_no_answer(args, words):
    asking()
    run = drive(make_run())

    with pytest.raises(CommandError, match=words):
        call_command("ravi_answer", str(asked(run).id), *args)

    assert asked(run).answer is None
