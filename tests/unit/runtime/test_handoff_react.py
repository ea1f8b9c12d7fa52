"""A tool that hands over says so in its result: what is recorded, the agent's last turn, what the other calls get,
and refusals; the same in every replay."""

import pytest

from ravi_django import register, save_spec, tool
from ravi_django.agents import FunctionMiddleware, ReActAgent
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import (
    AgentId,
    FinishAgentResult,
    Message,
    RunContext,
    TextBlock,
    ToolExecutionResult,
    ToolResultBlock,
    ToolUseBlock,
)
from ravi_django.kernel.messages import ChatMessage, ChatPayload
from ravi_django.models import JournalEntry, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import CodeAgent, code, drive, idle, make_run, take_over
from tests.support.tool_calls import output_of
from tests.support.world import DjangoHistoryProvider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@tool
def leave(target: str, task: str = "") -> str:
    return FinishAgentResult(target, task or None)


@tool
def look() -> str:
    return "seen"


def call(name, call_id, **arguments):
    return ToolUseBlock(tool_name=name, arguments=arguments, call_id=call_id)


def react(*script, loop=False, **options):
    """Register `react/front`, with a memory and the tools."""
    model = ScriptedModel(list(script), loop=loop)
    memory = ContextConfig(DjangoHistoryProvider())
    register(ReActAgent("front", model=model, tools=[leave, look], context=memory, **options))
    return model


async def shout(ctx, inbox):
    for message in inbox:
        await ctx.reply(message, message.payload.message.text.upper())


@pytest.fixture(autouse=True)
def _others():
    for key in ("b", "c", "helper"):
        register(CodeAgent(shout, key=key))


@pytest.fixture
def busy():
    """A session in which `test/b` is at work."""

    async def stay(ctx, inbox):
        await ctx.sleep_until_signal("never")

    register(CodeAgent(stay, key="b"), replace=True)
    return drive(make_run("test/b")).session


def turns_of(run):
    return Turn.objects.filter(run=run).order_by("position")


def results_of(run):
    """The results of the calls of each TOOL turn."""
    found = []
    for turn in turns_of(run):
        if turn.role == "tool":
            blocks = [ToolResultBlock.model_validate(block) for block in turn.content]
            found.append([(block.call_id, block.text, block.is_error) for block in blocks])
    return found


def kinds(run, kind):
    return [row for row in journal_of(run) if row.kind == kind]


def test_the_turn_is_kept_with_a_result_for_every_call_and_the_other_answers():
    model = react([call("leave", "c1", target="test/b", task="go on"), call("look", "c2")])
    run = idle(make_run("react/front"))
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "GO ON", "test/b")
    assert [turn.role for turn in turns_of(run)] == ["user", "assistant", "tool"]
    (results,) = results_of(run)
    assert results == [("c1", "handed over to test/b", False), ("c2", "seen", False)]
    assert len(model.calls) == 1


def test_the_first_of_a_turn_wins_by_its_place():
    leaving = [call("leave", f"c{n}", target=f"test/{key}", task=f"for {key}") for n, key in ((1, "c"), (2, "b"))]
    react([call("look", "c0"), *leaving])
    run = idle(make_run("react/front"))
    assert (run.agent, run.output) == ("test/c", "FOR C")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c0", False), ("c1", False), ("c2", True)]
    assert results[2][1] == "not done: the conversation was already handed over to test/c"
    assert len(kinds(run, "run.handoff")) == 1


@pytest.mark.parametrize("dies", [4, "end"])
def test_a_busy_agent_is_told_to_the_model_as_the_calls_result(clock, busy, dies):
    model = react([call("look", "c0"), call("leave", "c1", target="test/b")], "then I do it myself")
    run = drive(make_run("react/front", session=busy))
    assert (run.status, run.agent) == (Status.PENDING, "react/front")
    drive(run, dies=dies)
    clock.advance(100)
    idle(run)
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "then I do it myself", "react/front")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c0", False), ("c1", True)]
    assert results[1][1].startswith("not handed over: the session has another active run of test/b")
    assert [turn.role for turn in turns_of(run)] == ["user", "assistant", "tool", "assistant"]
    assert len(model.calls) <= 3


def test_a_refused_one_leaves_it_to_the_next(busy):
    react([call("leave", "c1", target="test/b", task="for b"), call("leave", "c2", target="test/c", task="for c")])
    run = idle(make_run("react/front", session=busy))
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "FOR C", "test/c")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c1", True), ("c2", False)]
    assert results[0][1].startswith("not handed over: the session has another active run of test/b")


def test_an_agent_with_a_result_model_hands_over_too():
    react(
        [call("final_result", "c0", answer=1), call("leave", "c1", target="test/b", task="go on")],
        result_model={"type": "object", "properties": {"answer": {"type": "integer"}}},
    )
    run = idle(make_run("react/front"))
    assert (run.output, run.agent) == ("GO ON", "test/b")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c0", True), ("c1", False)]


EFFECTS = ["idempotent", "at_most_once", "transactional"]
HELPER = AgentId("test", "helper")


def handing(result, effect="idempotent"):
    @tool(effect=effect)
    def give() -> str:
        return result

    return give


def seen_by(result, effect="idempotent", **how):
    """What the agent's code gets from the first execution, and from the replay after a worker that died behind it."""
    seen = []

    async def story(ctx, inbox):
        seen.append(await ctx.tool("give"))

    agent = code(story, tools=[handing(result, effect)])
    for name, value in how.items():
        setattr(agent, name, value)
    run = drive(make_run(), dies="end")
    return seen, run


@pytest.mark.parametrize(("effect", "target"), list(zip(EFFECTS, [HELPER, "test/helper", HELPER], strict=True)))
def test_it_is_recorded_and_every_replay_gives_it_again(clock, effect, target):
    seen, run = seen_by(FinishAgentResult(target, "go on"), effect)
    take_over(clock, run)
    first, again = seen
    assert first.finish == again.finish == FinishAgentResult(HELPER, "go on")
    assert (first.text, again.text, first.is_error) == ("asks to hand over to test/helper",) * 2 + (False,)
    row = JournalEntry.objects.get(kind="tool.call", phase="result")
    assert row.result["finish"] == {"target": "test/helper", "task": "go on"}


def test_a_message_as_the_task_keeps_its_id_and_the_result_may_have_words_of_its_own(clock):
    task = Message(target=HELPER, payload=ChatPayload(message=ChatMessage.of("user", "go on")))
    given = ToolExecutionResult(content=[TextBlock(text="bye")], finish=FinishAgentResult(HELPER, task))
    seen, run = seen_by(given)
    take_over(clock, run)
    first, again = seen
    assert (first.text, first.finish) == (again.text, again.finish) == ("bye", first.finish)
    assert (again.finish.task.id, again.finish.task.payload.message.text) == (task.id, "go on")


def test_neither_the_model_nor_a_client_is_shown_it():
    result = ToolExecutionResult(content=[TextBlock(text="bye")], finish=FinishAgentResult(HELPER))
    assert "finish" not in result.model_dump()
    assert "helper" not in result.model_dump_json()


@pytest.mark.parametrize(
    ("finish", "words", "effect"),
    [
        (FinishAgentResult("test/nobody"), "test/nobody", "idempotent"),
        (FinishAgentResult("nobody"), "nobody", "at_most_once"),
        (FinishAgentResult(7), "target is an agent's address", "transactional"),
        (FinishAgentResult(HELPER, 7), "task is a text or a Message", "idempotent"),
    ],
)
def test_nobody_to_hand_over_to_is_an_error_with_words(clock, effect, finish, words):
    seen, run = seen_by(finish, effect)
    take_over(clock, run)
    assert [(result.is_error, result.finish) for result in seen] == [(True, None)] * 2
    assert all(result.text.startswith("it cannot be handed over: ") and words in result.text for result in seen)


def test_an_agent_that_is_a_row_can_be_handed_over_to():
    save_spec("react/rowed", {"model": "rehearsal"})
    assert output_of(handing(FinishAgentResult("react/rowed"))) == "ok: asks to hand over to react/rowed"


def test_an_error_hands_nothing_over():
    seen, _ = seen_by(ToolExecutionResult(is_error=True, finish=FinishAgentResult(HELPER)))
    assert (seen[0].is_error, seen[0].finish) == (True, None)


def test_a_middleware_sees_it_and_may_keep_it_back():
    class Keep(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()
            assert context.result.finish is not None
            context.result = ToolExecutionResult(content=[TextBlock(text="not now")])

    seen, _ = seen_by(FinishAgentResult(HELPER), middleware=[Keep()])
    assert (seen[0].text, seen[0].finish) == ("not now", None)


@pytest.mark.parametrize("passes_on", [str, lambda result: result])
def test_a_tool_that_calls_it_says_what_has_not_happened_or_passes_it_on(passes_on):
    """A text alone hands nothing over, and claims nothing."""

    @tool
    async def outer(ctx: RunContext) -> str:
        result = await ctx.tool("give")
        return result.text if passes_on is str else passes_on(result)

    seen = []

    async def story(ctx, inbox):
        seen.append(await ctx.tool("outer"))

    code(story, tools=[handing(FinishAgentResult(HELPER)), outer])
    drive(make_run())
    assert seen[0].text == "asks to hand over to test/helper"
    assert seen[0].finish == (None if passes_on is str else FinishAgentResult(HELPER))
