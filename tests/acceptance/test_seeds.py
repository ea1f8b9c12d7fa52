"""The programs of `examples/seeds/`, each run to its end, and from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from examples.feed import ITEMS
from examples.seeds import cases, delegate, feed, loop, proxy
from ravi_django import register, signal, submit
from ravi_django.kernel import Agent, ToolUseBlock
from ravi_django.models import HumanRequest, Run, Status, Turn
from ravi_django.testing import FakeClock, ScriptedModel, journal_of, run_until_idle
from tests.support import world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _manual(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "manual"}  # run_until_idle delivers publications too


def call(name: str, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name=name, arguments=arguments, call_id="c1")


def last_result(messages: Any, options: Any) -> Any:
    return messages[-1].content[0].text


def begin(team: list[Agent], text: str, **options: Any) -> Run:
    for agent in team:
        register(agent)
    run = submit(team[0], text, **options)
    return after(run)


def after(run: Run) -> Run:
    run_until_idle()
    run.refresh_from_db()
    return run


def test_the_loop_calls_tools_until_the_model_answers_and_remembers() -> None:
    model = ScriptedModel([call("calculator", expression="12 * 7"), last_result])

    first = begin(loop.loop(model), "What is 12 * 7?")
    second = after(submit(first.agent, "Again.", session=first.session))

    assert (first.output, second.output) == ("84", "84"), (first.error, second.error)
    assert [message.text for message in model.calls[2].messages[:1]] == ["What is 12 * 7?"]
    assert Turn.objects.filter(session=first.session).count() == 8


def test_the_loop_ends_at_its_limit() -> None:
    run = begin(loop.loop(ScriptedModel([call("calculator", expression="1")], loop=True)), "Count.")

    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    assert len([entry for entry in journal_of(run) if entry.kind == "llm.call"]) == 10


@pytest.mark.parametrize(
    ("answer", "words"),
    [("Two.", "says: Two."), (RuntimeError("none"), "has failed."), (None, "in time."), ("cancel", "was cancelled.")],
)
def test_the_manager_continues_whatever_the_outcome_is(answer: Any, words: str) -> None:
    class Sleeper:
        id = delegate.RESEARCHER

        async def run(self, ctx: Any, inbox: Any) -> None:
            await ctx.sleep_until_signal("never")

    team = delegate.delegate(ScriptedModel([answer or ""]))
    with FakeClock() as clock:
        run = begin(team if answer not in (None, "cancel") else [team[0], Sleeper()], "Which tides are there?")
        if answer == "cancel":
            world.cancel(Run.objects.get(parent=run).id, "no longer needed")
        elif answer is None:
            clock.advance(121)
        after(run)

    assert (run.output or "").endswith(words), run.error


def test_a_person_answers_the_agent_that_asks_the_proxy() -> None:
    run = begin(proxy.proxy(), "Invoice 7 over $10,000")
    assert run.status == Status.SUSPENDED

    world.answer(HumanRequest.objects.get().id, "answer", text="yes")

    assert after(run).output == "sent"


def test_the_feed_brings_a_user_what_fits(django_user_model: Any) -> None:
    newsroom, reader = feed.feed(ScriptedModel("In short."))
    user = django_user_model.objects.create_superuser("ann")
    reading = begin([reader], "Begin.", user=user, metadata={"preferences": "python, sailing, not football"})
    news = begin([newsroom], "The doors are open.")
    for item in ITEMS:
        signal(news.id, "new_source_item", item)
        run_until_idle()

    curated = [entry.result for entry in journal_of(reading) if entry.name == "feed.curated"]
    assert [(item["title"], item["keep"]) for item in curated[1:]] == [
        (item["title"], "Football" not in item["title"]) for item in ITEMS
    ]
    assert {after(reading).status, after(news).status} == {Status.SUSPENDED}


CASES = [
    (call("ask_translator", text="good morning"), "Bonjour (depth 1)", "react/office", 1),
    (call("ask_customer", question="Which?"), "The customer says: this one", "react/office", 0),
    (call("give_to_translator", text="good morning"), "Bonjour (depth 0)", "agent/translator", 0),
]


@pytest.mark.parametrize(("tool", "output", "agent", "children"), CASES)
def test_the_three_cases(tool: ToolUseBlock, output: str, agent: str, children: int) -> None:
    office = ScriptedModel([tool, last_result])
    run = begin(cases.cases(office, ScriptedModel("Bonjour")), "Translate this: good morning")
    for request in HumanRequest.objects.filter(run=run):
        assert (run.status, request.text) == (Status.SUSPENDED, "Which?")
        world.answer(request.id, "answer", text="this one")
        after(run)

    assert (run.output, run.agent, Run.objects.filter(parent=run).count()) == (output, agent, children), run.error
