"""Another agent as a tool: a child run and its answer, journaled below the tool's own path."""

import pytest

from ravi_django import register, submit
from ravi_django.agents import AgentTool, ReActAgent
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ToolArgumentsError, ToolUseBlock
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import CodeAgent, drive, idle, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]

WRITER = AgentId("react", "writer")
HANDOFF = ToolUseBlock(tool_name="handoff_writer", arguments={"task": "Write a poem."}, call_id="c1")
CHOICE = "Ask another, ask differently, or go on without it."


@pytest.fixture
def model():
    return ScriptedModel([HANDOFF, "Here it is."], name="boss")


@pytest.fixture
def boss(model):
    def make(timeout=120.0):
        register(ReActAgent("boss", model=model, tools=[AgentTool(WRITER, "Writes.", timeout)]))
        return make_run("react/boss")

    return make


def writer_of(function):
    agent = CodeAgent(function)
    agent.id = WRITER
    register(agent)


def answer(run):
    """What the model was told of the hand-over."""
    (row,) = [row for row in journal_of(run) if row.kind == "tool.call"]
    return row.result["content"][0]["text"], row.result.get("is_error", False)


def test_the_agents_answer_is_the_tools_result(boss, model):
    poet = ScriptedModel(["Roses are red."])
    register(ReActAgent("writer", model=poet))
    run = boss()
    idle(run)
    child = Run.objects.get(parent=run)
    assert (run.status, run.output) == (Status.COMPLETED, "Here it is.")
    assert answer(run) == ("Roses are red.", False)
    assert (child.agent, child.status, child.session_id == run.session_id) == (str(WRITER), "completed", False)
    assert poet.calls[0].messages[-1].text == "Write a poem."
    paths = {row.kind: row.path for row in journal_of(run)}
    assert paths["child.spawned"].startswith(f"{paths['tool.call']}/")
    assert paths["ask"].startswith(f"{paths['tool.call']}/")


async def answers_with_data(ctx, inbox):
    await ctx.reply(inbox[0], {"lines": 2})


async def fails(ctx, inbox):
    raise RuntimeError("out of ink")


async def waits(ctx, inbox):
    await ctx.sleep_until_signal("never")


def test_a_failure_is_words_for_the_model(boss, model):
    for function, words, is_error in (
        (None, "no agent is registered as 'react/writer'", True),
        (fails, f"react/writer failed: out of ink. {CHOICE}", True),
        (answers_with_data, '{"lines":2}', False),
    ):
        if function:
            writer_of(function)
        run = idle(boss())
        assert (run.status, run.output) == (Status.COMPLETED, "Here it is.")
        told, failed = answer(run)
        assert words in told and failed == is_error


def test_waiting_for_an_agent_takes_no_tools_slot(step, ran):
    writer_of(waits)
    calls = [HANDOFF, ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2")]
    model = ScriptedModel([calls, "ok"])
    register(ReActAgent("boss", model=model, tools=[AgentTool(WRITER), step], max_parallel_tools=1))
    run = idle(make_run("react/boss"))
    assert (run.status, ran) == (Status.SUSPENDED, ["tool"])


def test_a_task_is_a_text_a_timeout_seconds_and_the_name_fits_every_provider():
    for arguments in ({}, {"task": " "}, {"task": 3}, {"task": "a", "more": 1}):
        with case(arguments), pytest.raises(ToolArgumentsError) as caught:
            AgentTool(WRITER).validate(arguments)
        assert caught.value.field == "task"
    for timeout in (0, -1, True, float("inf"), "9"):
        with case(timeout), refused("timeout"):
            AgentTool(WRITER, timeout=timeout)
    assert AgentTool(f"react/{'a.b:' * 25}").name == "handoff_" + ("a_b_" * 25)[:56]


def test_a_sub_agent_has_the_variables_of_its_caller(monkeypatch, clock):
    handoff = ToolUseBlock(tool_name="handoff_row-writer", arguments={"task": "Write."}, call_id="c1")
    models = {"boss": ScriptedModel([handoff, "done"], name="boss"), "poet": ScriptedModel(["Roses."], name="poet")}
    world.patch(monkeypatch, "build_model", lambda name, **options: models[name])
    words = "For {{ customer }}, {{ tone }}."
    both = {"customer": {"required": True}, "tone": {"required": True}}
    world.save_spec("react/row-writer", {"model": "poet", "system_instructions": words, "variables": both})
    world.save_spec(
        "react/row-boss",
        {"model": "boss", "sub_agents": ["react/row-writer"]}
        | {"variables": {"customer": {"required": True}, "tone": {"default": "kindly"}, "own": {"default": 1}}},
    )
    run = submit("react/row-boss", "hi", metadata={"variables": {"customer": "Ada"}})
    drive(run, dies=5, written=True)
    clock.advance(conf.LEASE_S + 1)
    idle(run)
    child = Run.objects.get(parent=run)
    assert (run.output, child.metadata) == ("done", {"variables": {"customer": "Ada", "tone": "kindly"}})
    assert models["poet"].calls[0].messages[0].text == "For Ada, kindly."
