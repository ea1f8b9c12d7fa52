"""A tool that hands over says so in its result: recorded, told to the model in words, restored by every replay."""

from __future__ import annotations

import pytest

from ravi_django import register, save_spec, tool
from ravi_django.agents import FunctionMiddleware
from ravi_django.kernel import AgentId, FinishAgentResult, Message, RunContext, TextBlock, ToolExecutionResult
from ravi_django.kernel.messages import ChatMessage, ChatPayload
from ravi_django.models import JournalEntry
from tests.support.runs import CodeAgent, code, drive, make_run, take_over
from tests.support.tool_calls import output_of

pytestmark = pytest.mark.django_db(transaction=True)

EFFECTS = ["idempotent", "at_most_once", "transactional"]
HELPER = AgentId("test", "helper")


@pytest.fixture(autouse=True)
def helper():
    async def story(ctx, inbox): ...

    register(CodeAgent(story, key="helper"))


def handing(result, effect="idempotent"):
    @tool(effect=effect)
    def give() -> str:
        return result

    return give


def seen_by(result, effect="idempotent", **how):
    """What the agent's code is told by the first execution, and by the replay of a worker that died behind it."""
    told = []

    async def story(ctx, inbox):
        told.append(await ctx.tool("give"))

    agent = code(story, tools=[handing(result, effect)])
    for name, value in how.items():
        setattr(agent, name, value)
    run = drive(make_run(), dies="end")
    return told, run


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("target", [HELPER, "test/helper"])
def test_it_is_recorded_and_every_replay_gives_it_again(clock, effect, target):
    told, run = seen_by(FinishAgentResult(target, "go on"), effect)
    take_over(clock, run)
    first, again = told
    assert first.finish == again.finish == FinishAgentResult(HELPER, "go on")
    assert (first.text, again.text, first.is_error) == ("asks to hand over to test/helper",) * 2 + (False,)
    row = JournalEntry.objects.get(kind="tool.call", phase="result")
    assert row.result["finish"] == {"target": "test/helper", "task": "go on"}


def test_a_message_as_the_task_keeps_its_id_and_the_result_may_have_words_of_its_own(clock):
    task = Message(target=HELPER, payload=ChatPayload(message=ChatMessage.of("user", "go on")))
    given = ToolExecutionResult(content=[TextBlock(text="bye")], finish=FinishAgentResult(HELPER, task))
    told, run = seen_by(given)
    take_over(clock, run)
    first, again = told
    assert (first.text, first.finish) == (again.text, again.finish) == ("bye", first.finish)
    assert (again.finish.task.id, again.finish.task.payload.message.text) == (task.id, "go on")


def test_neither_the_model_nor_a_client_is_shown_it():
    result = ToolExecutionResult(content=[TextBlock(text="bye")], finish=FinishAgentResult(HELPER))
    assert "finish" not in result.model_dump()
    assert "helper" not in result.model_dump_json()


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    ("finish", "words"),
    [
        (FinishAgentResult("test/nobody"), "test/nobody"),
        (FinishAgentResult("nobody"), "nobody"),
        (FinishAgentResult(7), "target is an agent's address"),
        (FinishAgentResult(HELPER, 7), "task is a text or a Message"),
    ],
)
def test_nobody_to_hand_over_to_is_an_error_with_words(clock, effect, finish, words):
    told, run = seen_by(finish, effect)
    take_over(clock, run)
    assert [(result.is_error, result.finish) for result in told] == [(True, None)] * 2
    assert all(result.text.startswith("it cannot be handed over: ") and words in result.text for result in told)


def test_an_agent_that_is_a_row_can_be_handed_over_to():
    save_spec("react/rowed", {"model": "rehearsal"})
    assert output_of(handing(FinishAgentResult("react/rowed"))) == "ok: asks to hand over to react/rowed"


def test_an_error_hands_nothing_over():
    told, _ = seen_by(ToolExecutionResult(is_error=True, finish=FinishAgentResult(HELPER)))
    assert (told[0].is_error, told[0].finish) == (True, None)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_middleware_sees_it_and_may_keep_it_back(effect):
    class Keep(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()
            assert context.result.finish is not None
            context.result = ToolExecutionResult(content=[TextBlock(text="not now")])

    told, _ = seen_by(FinishAgentResult(HELPER), effect, middleware=[Keep()])
    assert (told[0].text, told[0].finish) == ("not now", None)


@pytest.mark.parametrize("passes_on", [str, lambda result: result])
def test_a_tool_that_calls_it_says_what_has_not_happened_or_passes_it_on(passes_on):
    """A text alone hands nothing over, and claims nothing."""

    @tool
    async def outer(ctx: RunContext) -> str:
        result = await ctx.tool("give")
        return result.text if passes_on is str else passes_on(result)

    told = []

    async def story(ctx, inbox):
        told.append(await ctx.tool("outer"))

    code(story, tools=[handing(FinishAgentResult(HELPER)), outer])
    drive(make_run())
    assert told[0].text == "asks to hand over to test/helper"
    assert told[0].finish == (None if passes_on is str else FinishAgentResult(HELPER))
