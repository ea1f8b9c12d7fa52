"""A ReActAgent whose tool returns FinishAgentResult: its last turn, what the other calls are told, and refusals."""

from __future__ import annotations

import pytest

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig
from ravi_django.kernel import AgentId, FinishAgentResult, ToolResultBlock, ToolUseBlock
from ravi_django.models import Run, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import CodeAgent, code, drive, every_death, idle, make_run
from tests.support.world import DjangoHistoryProvider

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")


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
    for key in ("b", "c"):
        register(CodeAgent(shout, key=key))


def turns_of(run):
    return Turn.objects.filter(run=run).order_by("position")


def results_of(run):
    """What the calls of each TOOL turn were told."""
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
    react(
        [
            call("look", "c0"),
            call("leave", "c1", target="test/c", task="for c"),
            call("leave", "c2", target="test/b", task="for b"),
        ]
    )
    run = idle(make_run("react/front"))
    assert (run.agent, run.output) == ("test/c", "FOR C")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c0", False), ("c1", False), ("c2", True)]
    assert results[2][1] == "not done: the conversation was already handed over to test/c"
    assert len(kinds(run, "run.handoff")) == 1


def test_a_worker_that_dies_around_it_pays_no_recorded_call_twice(clock):
    model = react([call("look", "c0"), call("leave", "c1", target="test/b", task="go on")], loop=True)

    def story(drive):
        model.calls.clear()
        run = drive(make_run("react/front"))
        run_until_idle()
        return run

    for run, death in every_death(clock, story):
        assert (run.output, run.agent) == ("GO ON", "test/b")
        assert len(model.calls) == 1 + death.lost("llm.call")
        assert [turn.role for turn in turns_of(run)] == ["user", "assistant", "tool"]
        assert [turn.index for turn in turns_of(run)] == [0, 1, 2]
        assert len(kinds(run, "run.handoff")) == 1


@pytest.mark.parametrize("dies", [None, 3, 4, "end"])
def test_a_busy_agent_is_told_to_the_model_as_the_calls_result(clock, dies):
    async def stay(ctx, inbox):
        await ctx.sleep_until_signal("never")

    register(CodeAgent(stay, key="b"))
    busy = drive(make_run("test/b"))
    model = react([call("look", "c0"), call("leave", "c1", target="test/b")], "then I do it myself")
    run = make_run("react/front", session=busy.session)
    run = drive(run)
    assert (run.status, run.agent) == (Status.PENDING, "react/front")
    if dies is not None:
        drive(run, dies=dies)
        clock.advance(100)
    idle(run)
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "then I do it myself", "react/front")
    (results,) = results_of(run)
    assert [(call_id, is_error) for call_id, _, is_error in results] == [("c0", False), ("c1", True)]
    assert results[1][1].startswith("not handed over: the session has another active run of test/b")
    assert [turn.role for turn in turns_of(run)] == ["user", "assistant", "tool", "assistant"]
    assert len(model.calls) <= 3


def test_a_refused_one_leaves_it_to_the_next():
    async def stay(ctx, inbox):
        await ctx.sleep_until_signal("never")

    register(CodeAgent(stay, key="b"))
    busy = drive(make_run("test/b"))
    react([call("leave", "c1", target="test/b", task="for b"), call("leave", "c2", target="test/c", task="for c")])
    run = idle(make_run("react/front", session=busy.session))
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


def test_the_messages_behind_the_one_that_was_handed_over_go_along():
    seen = []

    async def answer(ctx, inbox):
        seen.append([message.payload.message.text for message in inbox])

    async def story(ctx, inbox):
        handle = await ctx.spawn(AgentId("react", "front"))
        for text in ("one", "two"):
            await ctx.send(handle, text)
        await ctx.join(handle)

    register(CodeAgent(answer, key="b"))
    react(call("leave", "c1", target="test/b"))
    code(story)
    run = drive(make_run())
    assert Run.objects.get(parent=run).inbox.count() == 2
    run_until_idle()
    assert seen == [["one", "two"]]
