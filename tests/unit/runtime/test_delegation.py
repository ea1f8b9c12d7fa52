"""An orchestrator's delegations: child runs in parallel, their outcomes in words, one that takes over, and what a crash
changes: nothing."""

import pytest

from ravi_django import register, signal
from ravi_django.agents import ContextConfig, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    DataPayload,
    HookEvent,
    Message,
    PermanentError,
    Priority,
    ToolUseBlock,
)
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.cases import case
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, every_death, idle, make_run, take_over

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


def handoff(key, call_id="c1", **arguments):
    return ToolUseBlock(tool_name=f"handoff_{key}", arguments=arguments or {"task": f"for {key}"}, call_id=call_id)


def member(function, key="writer"):
    """An agent made of a function, at `test/<key>`."""
    return CodeAgent(function, key=key)


async def echoes(ctx, inbox):
    await ctx.reply(inbox[0], {"text": f"{ctx.agent_id.key} did {inbox[0].payload.message.text}"})


async def fails(ctx, inbox):
    raise RuntimeError("out of ink")


async def waits(ctx, inbox):
    said = await ctx.sleep_until_signal("go")
    await ctx.reply(inbox[0], {"text": said})


def boss(script, *sub_agents, **options):
    """Register an orchestrator; returns its model and a run of it."""
    model = ScriptedModel(script, name="boss")
    configs = [one if isinstance(one, SubAgentConfig) else SubAgentConfig(one) for one in sub_agents]
    register(OrchestratorAgent("boss", model=model, sub_agents=configs, **options), replace=True)
    return model, make_run("orchestrator/boss")


def told(model, call=1):
    """What the boss' model saw of its calls: call id → (text, is error)."""
    blocks = model.calls[call].messages[-1].content
    return {block.call_id: (block.text, block.is_error) for block in blocks}


def kinds(run):
    return [row.kind for row in journal_of(run)]


def test_the_child_knows_who_has_sent_it():
    seen = []

    async def looks(ctx, inbox):
        seen.append((inbox[0].metadata["parent_agent_id"], str(inbox[0].sender), inbox[0].correlation_id))

    _, run = boss([handoff("writer"), "ok"], member(looks))
    idle(run)
    assert seen == [("orchestrator/boss", "orchestrator/boss", str(run.session_id))]


def test_forty_in_one_turn(settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 41}
    calls = [handoff("writer", f"c{number}", task=f"part {number}") for number in range(40)]
    model, run = boss([calls, "all done"], member(echoes))
    run_until_idle(timeout=BOUND_S)
    assert idle(run).output == "all done"
    assert told(model) == {f"c{number}": (f"writer did part {number}", False) for number in range(40)}
    assert kinds(run).count("run.suspended") < 40


# ----------------------------------------------------------------------------------------------------- outcomes


def test_whatever_comes_of_a_task_is_words_for_the_model():
    async def long_winded(ctx, inbox):
        await ctx.reply(inbox[0], {"text": "x" * 1_000_010})

    poet = ScriptedModel(["Roses are red."], name="poet")
    for key, sub_agent, words, is_error in (
        ("writer", member(fails), "test/writer failed: out of ink. Ask another", True),
        ("ghost", "test/ghost", "no agent is registered as 'test/ghost'", True),
        ("poet", ReActAgent("poet", model=poet), "Roses are red.", False),
        ("writer", member(long_winded), "x" * 1_000_000 + "\n… [10 more characters are not shown]", False),
    ):
        with case(key, words[:60]):
            model, run = boss([handoff(key), "ok"], sub_agent)
            assert idle(run).output == "ok"
            text, failed = told(model)["c1"]
            assert (words in text if is_error else words == text) and failed == is_error
    assert poet.calls[0].messages[-1].text == "for poet", "it keeps its own history"


def test_a_full_tree_is_words_for_the_model(settings):
    settings.RAVI = {**settings.RAVI, "MAX_TREE": 3}
    # The two children live until the third is refused: one that has ended would leave it its place.
    model, run = boss([[handoff("writer", f"c{number}") for number in range(3)], "ok"], member(waits))
    assert idle(run).status == Status.SUSPENDED
    children = list(Run.objects.filter(parent=run))
    assert len(children) == 2
    for child in children:
        signal(child, "go", "done")
    assert idle(run).output == "ok"
    (denied,) = [text for text, is_error in told(model).values() if is_error]
    assert denied.startswith("test/writer was not started, nothing has been done: the tree has 3 live runs")


def test_a_bad_task_goes_back_to_the_model():
    model, run = boss([handoff("writer", task=" "), handoff("writer", "c2"), "ok"], member(echoes))
    assert idle(run).output == "ok"
    assert told(model) == {"c1": ('handoff_writer takes one argument: {"task": "…"}, a text', True)}
    assert told(model, 2) == {"c2": ("writer did for writer", False)}
    assert Run.objects.filter(parent=run).count() == 1


def test_arguments_without_a_task_are_the_task():
    model, run = boss([handoff("writer", query="look it up"), "ok"], member(echoes))
    assert idle(run).output == "ok"
    assert told(model) == {"c1": ('writer did {"query":"look it up"}', False)}


def test_the_childs_priority_is_the_configured_one():
    _, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(echoes), priority=Priority.LOW))
    idle(run)
    assert Run.objects.get(parent=run).priority == Priority.LOW


# --------------------------------------------------------------------------------------------- crash and replay


PARALLEL = [
    handoff("writer", "c1", task="one"),
    ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2"),
    handoff("writer", "c3", task="two"),
]
RESULTS = {"c1": ("writer did one", False), "c2": ("tool", False), "c3": ("writer did two", False)}


def test_a_takeover_in_a_parallel_turn_spawns_none_twice_and_routes_each_answer_to_its_call(step, ran, clock):
    models = []

    def story(drive_and_die):
        ran.clear()
        model, run = boss([PARALLEL, "done"], member(echoes), tools=[step])
        models.append(model)
        drive_and_die(run)
        begun = len(ran)
        for child in reversed(Run.objects.filter(parent=run).order_by("id")):
            drive(child)
        drive_and_die(run)
        assert 0 < len(ran) == begun, "what was recorded before the answers is not done again"
        return run

    for run, death in every_death(clock, story):
        assert (run.status, run.output, run.error) == (Status.COMPLETED, "done", None)
        assert Run.objects.filter(parent=run).count() == 2
        assert told(models[-1], -1) == RESULTS
        assert len(models[-1].calls) == 2 + death.lost("llm.call")

        paths = {row.path for row in journal_of(run) if row.kind == "child.spawned"}
        assert paths == {f"turn1.call{place}.1" for place in (0, 2)}


def test_the_deadline_of_an_answer_survives_a_crash(clock):
    """It is the journaled one: a takeover does not begin to count anew."""
    model, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(waits), ask_timeout=100.0))
    drive(run, dies=3, written=True)  # spawned and asked, dead before it could suspend
    asked = next(row for row in journal_of(run) if row.kind == "ask")
    clock.advance(60)
    idle(run)
    assert (run.status, len(model.calls)) == (Status.SUSPENDED, 1)
    assert run.waiting_on[0]["until"][:19] == asked.request["until"][:19]
    clock.advance(39)
    assert idle(run).status == Status.SUSPENDED
    clock.advance(2)
    assert idle(run).output == "ok"
    assert "it may still be at work" in told(model)["c1"][0]


def test_an_edited_description_is_drift_alone_and_a_sub_agent_that_is_gone_blocks_the_run(clock):
    for sub_agents in ([SubAgentConfig("test/writer", "Writes very well.", 60)], []):
        model, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(echoes), "Writes."))
        drive(run, dies=3, written=True)
        register(OrchestratorAgent("boss", model=model, sub_agents=sub_agents), replace=True)
        take_over(clock, run)
        if sub_agents:
            idle(run)
            assert (run.status, run.output, kinds(run).count("replay.drift")) == (Status.COMPLETED, "ok", 1)
            assert Run.objects.filter(parent=run).count() == 1
        else:
            assert run.status == Status.BLOCKED


# ------------------------------------------------------------------------------------------------------- nesting


def nested():
    """A boss whose sub-agent is an orchestrator of two."""
    lead_model = ScriptedModel([[handoff("writer", "w"), handoff("critic", "k")], _joined], name="lead")
    team = [SubAgentConfig(member(echoes)), SubAgentConfig(member(echoes, "critic"))]
    _, run = boss([handoff("lead", task="both"), _joined], OrchestratorAgent("lead", model=lead_model, sub_agents=team))
    return lead_model, run


def _joined(messages, options):
    return " + ".join(block.text for block in messages[-1].content)


def test_orchestrators_nest():
    _, run = nested()
    assert idle(run).output == "writer did for writer + critic did for critic"
    tree = Run.objects.filter(root=run).order_by("depth", "agent").values_list("agent", "depth", "parent__agent")
    assert list(tree) == [
        ("orchestrator/lead", 1, "orchestrator/boss"),
        ("test/critic", 2, "orchestrator/lead"),
        ("test/writer", 2, "orchestrator/lead"),
    ]


# ------------------------------------------------------------------------------------- approval, hooks, registry


def test_hooks_hear_of_a_handoff_once(clock):
    heard = []
    hooks = {HookEvent.HANDOFF: lambda call: heard.append(dict(call.data))}
    _, run = boss([handoff("writer"), "ok"], member(echoes), hooks=hooks)
    drive(run, dies=3, written=True)
    idle(take_over(clock, run))
    assert heard == [{"target": "test/writer", "run": str(Run.objects.get(parent=run).id)}]


def test_the_team_is_registered_with_its_orchestrator():
    first, second, own = member(echoes, "reg-a"), member(fails, "reg-a"), member(echoes, "reg-b")
    register(own)

    def team(*members):
        sub_agents = [SubAgentConfig(one) for one in members]
        lead = OrchestratorAgent("reg-lead", model=ScriptedModel("x"), sub_agents=sub_agents)
        register(OrchestratorAgent("reg-boss", model=ScriptedModel("x"), sub_agents=[SubAgentConfig(lead)]))

    team(first, member(fails, "reg-b"))
    assert world.get_agent("test/reg-a") is first
    assert world.get_agent("test/reg-b") is own  # it was registered by itself
    team(second)
    assert world.get_agent("test/reg-a") is second  # a later team's goes before an earlier one's


def test_an_orchestrators_handoffs_are_no_tools_for_others():
    boss(["x"], member(echoes))
    assert world.known_tools().get("handoff_writer") is None


def most(settings, size):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": size}


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_task_that_is_no_input_for_any_run_is_words_for_the_model(settings, clock, takes_over):
    """A worker that takes over says so again, though the limit is another by then."""
    most(settings, 1000)
    config = SubAgentConfig(member(echoes), handoff=takes_over)
    model, run = boss([handoff("writer", task="é" * 501), "shorter, then"], config)
    drive(run, dies="end")
    clock.advance(conf.LEASE_S + 1)
    most(settings, 10_000)
    idle(run)
    text, is_error = told(model)["c1"]
    assert (run.status, run.output, is_error) == (Status.COMPLETED, "shorter, then", True)
    assert "the task has 1004 bytes, the limit is 1000" in text
    assert (len(model.calls), Run.objects.filter(parent=run).count()) == (2, 0)


@pytest.mark.parametrize("task", [DataPayload(data={"x": "y" * 1001}), "x" * 1001])
def test_code_is_told_that_what_boots_a_run_is_too_long(settings, task):
    most(settings, 1000)
    register(member(echoes))

    async def story(ctx, inbox):
        target = AgentId("test", "writer")
        boot = task if isinstance(task, str) else Message(target=target, payload=task)
        try:
            await ctx.spawn(target, boot)
        except PermanentError as error:
            return str(error)

    code(story)
    assert "the limit is 1000" in drive(make_run()).output


def desk(script, **options):
    """An orchestrator that delegates to a checker and hands over to sales or support."""
    model = ScriptedModel(script, name="desk")
    team = [SubAgentConfig(member(echoes, key), handoff=key != "checker") for key in ("checker", "sales", "support")]
    context = ContextConfig(DjangoHistoryProvider())
    return model, register(OrchestratorAgent("desk", model=model, sub_agents=team, context=context, **options))


def last_turn(run):
    """The results of the desk's last turn, as its history has them."""
    (turn,) = [turn for turn in run.session.turns.all() if turn.role == "tool"]
    return {
        block["call_id"]: ("\n".join(part["text"] for part in block["content"]), block["is_error"])
        for block in turn.content
    }


def test_the_sub_agent_answers_in_the_orchestrators_place_behind_the_other_calls_of_the_turn(step, ran):
    tool = ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2")
    model, _ = desk([[handoff("sales", "c1"), tool, handoff("checker", "c3")]], tools=[step])
    run = idle(make_run("orchestrator/desk"))
    assert (run.status, run.agent, run.output) == (Status.COMPLETED, "test/sales", "sales did for sales")
    assert (ran, len(model.calls), Run.objects.get(parent=run).agent) == (["tool"], 1, "test/checker")
    assert last_turn(run) == {
        "c1": ("handed over to test/sales", False),
        "c2": ("tool", False),
        "c3": ("checker did for checker", False),
    }


def test_a_takeover_hands_over_once_and_the_asker_has_its_answer(clock):
    """The desk is itself a sub-agent: whoever asked it is answered by the one who took over, in the right call."""
    models = []

    def story(drive_and_die):
        model, inner = desk([[handoff("checker", "k"), handoff("sales", "s")]])
        boss_model = ScriptedModel([[handoff("desk", "c1"), handoff("support", "c2")], "done"], name="boss")
        models[:] = model, boss_model
        sub_agents = [SubAgentConfig(inner), SubAgentConfig(member(echoes, "support"))]
        register(OrchestratorAgent("boss", model=boss_model, sub_agents=sub_agents))
        drive(make_run("orchestrator/boss"))
        child = drive_and_die(Run.objects.get(agent="orchestrator/desk"))
        run_until_idle()
        return child

    for child, death in every_death(clock, story):
        model, boss_model = models
        told = {block.call_id: block.text for block in boss_model.calls[-1].messages[-1].content}
        assert (child.parent.output, child.agent, child.status) == ("done", "test/sales", "completed")
        assert told == {"c1": "sales did for sales", "c2": "support did for support"}
        assert [row.kind for row in journal_of(child)].count("run.handoff") == 1
        assert len(model.calls) == 1 + death.lost("llm.call")
        assert Run.objects.get(parent=child).agent == "test/checker"
