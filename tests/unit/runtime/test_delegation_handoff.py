"""A delegation that ends the orchestrator's part: the sub-agent goes on as its run, and answers in its place."""

from __future__ import annotations

import pytest

from ravi_django import register
from ravi_django.agents import ContextConfig, OrchestratorAgent, SubAgentConfig
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.conf import conf
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import CodeAgent, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")


def handoff(key, call_id="c1"):
    return ToolUseBlock(tool_name=f"handoff_{key}", arguments={"task": f"for {key}"}, call_id=call_id)


async def echoes(ctx, inbox):
    await ctx.reply(inbox[0], {"text": f"{ctx.agent_id.key} did {inbox[0].payload.message.text}"})


def member(key):
    return CodeAgent(echoes, key=key)


def desk(script, key="desk", **options):
    """An orchestrator that delegates to a checker and hands over to sales or support."""
    model = ScriptedModel(script, name=key)
    agent = OrchestratorAgent(
        key,
        model=model,
        sub_agents=[
            SubAgentConfig(member("checker")),
            SubAgentConfig(member("sales"), handoff=True),
            SubAgentConfig(member("support"), handoff=True),
        ],
        context=ContextConfig(DjangoHistoryProvider()),
        **options,
    )
    register(agent)
    return model, agent


def last_turn(run):
    """The results of the desk's last turn, as its history has them."""
    (turn,) = [turn for turn in run.session.turns.all() if turn.role == "tool"]
    return {
        block["call_id"]: ("\n".join(part["text"] for part in block["content"]), block["is_error"])
        for block in turn.content
    }


def test_the_sub_agent_answers_in_the_orchestrators_place():
    model, _ = desk([handoff("sales")])
    run = make_run("orchestrator/desk")

    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.agent, run.output) == (
        Status.COMPLETED,
        "test/sales",
        "sales did for sales",
    )
    assert not Run.objects.filter(parent=run).exists()
    assert len(model.calls) == 1
    assert last_turn(run) == {"c1": ("handed over to test/sales", False)}


def test_it_comes_behind_the_other_calls_of_the_turn(step, ran):
    tool = ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2")
    desk([[handoff("sales", "c1"), tool, handoff("checker", "c3")]], tools=[step])
    run = make_run("orchestrator/desk")

    run_until_idle()

    run.refresh_from_db()
    assert (run.agent, run.output, ran) == ("test/sales", "sales did for sales", ["tool"])
    assert last_turn(run) == {
        "c1": ("handed over to test/sales", False),
        "c2": ("tool", False),
        "c3": ("checker did for checker", False),
    }


def test_of_several_the_first_takes_over():
    desk([[handoff("support", "c1"), handoff("sales", "c2")]])
    run = make_run("orchestrator/desk")

    run_until_idle()

    run.refresh_from_db()
    results = last_turn(run)
    assert (run.agent, run.output) == ("test/support", "support did for support")
    assert results["c1"] == ("handed over to test/support", False)
    assert results["c2"][1] is True
    assert "already handed over to test/support" in results["c2"][0]


def test_a_bad_task_hands_nothing_over():
    bad = ToolUseBlock(tool_name="handoff_sales", arguments={"task": ""}, call_id="c1")
    _, _ = desk([bad, "I do it myself."])
    run = make_run("orchestrator/desk")

    run_until_idle()

    run.refresh_from_db()
    assert (run.agent, run.output) == ("orchestrator/desk", "I do it myself.")


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("dies", [*range(1, 7), "end"])
def test_a_takeover_hands_over_once_and_the_asker_has_its_answer(clock, dies, written):
    """The desk is itself a sub-agent: whoever asked it is answered by the one who took over, in the right call."""
    model, inner = desk([[handoff("checker", "k"), handoff("sales", "s")]])
    boss_model = ScriptedModel([[handoff("desk", "c1"), handoff("support", "c2")], "done"], name="boss")
    sub_agents = [SubAgentConfig(inner), SubAgentConfig(member("support"))]
    register(OrchestratorAgent("boss", model=boss_model, sub_agents=sub_agents))
    run = make_run("orchestrator/boss")
    drive(run)
    child = Run.objects.get(parent=run, agent="orchestrator/desk")
    drive(child, dies=dies, written=written)
    clock.advance(conf.LEASE_S + 1)

    run_until_idle()

    run.refresh_from_db()
    child.refresh_from_db()
    told = {block.call_id: block.text for block in boss_model.calls[-1].messages[-1].content}
    assert (run.output, child.agent, child.status) == ("done", "test/sales", "completed")
    assert told == {"c1": "sales did for sales", "c2": "support did for support"}
    assert [row.kind for row in journal_of(child)].count("run.handoff") == 1
    assert len(model.calls) == 1 + (dies == 1 and not written)
    assert Run.objects.filter(parent=child).count() == 1  # the checker
