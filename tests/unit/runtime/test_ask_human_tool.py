"""`ask_human`, the tool: it waits inside its own call, and whatever becomes of the question is told to the model."""

import asyncio
from datetime import timedelta

import pytest

from ravi_django.kernel import Effect, Risk
from ravi_django.models import HumanRequest, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import asked, code, drive, every_death, make_run
from tests.support.tool_calls import calling
from tests.support.world import AskHumanTool

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


def test_a_question_that_is_not_answered_is_told_in_words(clock):
    asking(AskHumanTool(answer_within=timedelta(minutes=1)))
    for action, words in (("skip", "skipped the question"), ("cancel", "do not ask it again"), (None, "no consent")):
        run = drive(make_run())
        request = HumanRequest.objects.get(run=run)
        if action:
            world.answer(request.id, action)
        else:
            clock.advance(61)
        output = drive(run).output
        assert output.startswith("ok: ") and words in output, action


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


def test_of_questions_at_once_no_more_than_the_limit_are_asked(clock):
    async def agent(ctx, inbox):
        calls = [ctx.tool("ask_human", question=f"Question {number}?") for number in range(3)]
        results = await asyncio.gather(*calls)
        return sorted(result.status for result in results)

    def story(drive):
        run = drive(make_run())
        assert (run.status, len(questions(run))) == (Status.SUSPENDED, 2)
        for request in questions(run):
            world.answer(request.id, text="yes")
        return drive(run)

    code(agent, tools=[AskHumanTool(max_per_run=2)])
    for run, _ in every_death(clock, story):
        assert (run.output, len(questions(run))) == ('["error","ok","ok"]', 2)


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


BAD = [
    ({"choices": ["a", "b", "c", "d"]}, "choices"),
    ({"question": ""}, "question"),
    ({"question": "  "}, "question is a text"),
]


def test_a_bad_question_goes_back_to_the_model_and_a_bad_limit_to_the_site():
    async def story(ctx, inbox):
        for arguments, words in BAD:
            result = await ctx.tool("ask_human", **{"question": "Which colour?", **arguments})
            assert result.status == "error" and words in result.text, (arguments, result.text)

    code(story, tools=[AskHumanTool()])

    run = drive(make_run())
    assert (run.status, run.error, questions(run)) == (Status.COMPLETED, None, [])
    for most in (0, True, "3"):
        with case(most), refused("max_per_run"):
            AskHumanTool(max_per_run=most)
