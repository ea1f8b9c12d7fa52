"""An orchestrator's delegations: child runs in parallel, their outcomes in words, and what a crash changes: nothing."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django import register, signal, submit
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    DataPayload,
    HookEvent,
    Message,
    PermanentError,
    Priority,
    SpawnBudget,
    ToolUseBlock,
)
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, make_run, take_over
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")


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
    register(OrchestratorAgent("boss", model=model, sub_agents=configs, **options))
    return model, make_run("orchestrator/boss")


def told(model, call=1):
    """What the boss' model saw of its calls: call id → (text, is error)."""
    blocks = model.calls[call].messages[-1].content
    return {block.call_id: (block.text, block.is_error) for block in blocks}


def kinds(run):
    return [row.kind for row in journal_of(run)]


def test_a_reply_is_the_calls_result():
    model, run = boss([handoff("writer"), "Here it is."], member(echoes))

    run_until_idle()

    run.refresh_from_db()
    child = Run.objects.get(parent=run)
    assert (run.status, run.output) == (Status.COMPLETED, "Here it is.")
    assert told(model) == {"c1": ("writer did for writer", False)}
    assert (child.agent, child.root_id, child.depth, child.session_id == run.session_id) == (
        "test/writer",
        run.id,
        1,
        False,
    )
    assert "tool.call" not in kinds(run)


def test_the_child_knows_who_has_sent_it():
    seen = []

    async def looks(ctx, inbox):
        seen.append((inbox[0].metadata["parent_agent_id"], str(inbox[0].sender), inbox[0].correlation_id))

    _, run = boss([handoff("writer"), "ok"], member(looks))

    run_until_idle()

    assert seen == [("orchestrator/boss", "orchestrator/boss", str(run.session_id))]


def test_calls_of_a_turn_run_in_parallel_and_keep_their_ids(step, ran):
    calls = [
        handoff("slow", "c1", task="one"),
        ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2"),
        handoff("fast", "c3", task="two"),
        handoff("fast", "c4", task="three"),
    ]
    model, run = boss(
        [calls, "done"], member(waits, "slow"), member(echoes, "fast"), tools=[step], max_parallel_tools=1
    )

    run_until_idle()
    run.refresh_from_db()
    assert (run.status, ran, Run.objects.filter(parent=run).count()) == (Status.SUSPENDED, ["tool"], 3)

    signal(Run.objects.get(parent=run, agent="test/slow").id, "go", "at last")
    run_until_idle()

    run.refresh_from_db()
    assert run.output == "done"
    assert told(model) == {
        "c1": ("at last", False),
        "c2": ("tool", False),
        "c3": ("fast did two", False),
        "c4": ("fast did three", False),
    }
    assert ran == ["tool"]


def test_a_hundred_in_one_turn(settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 101}
    calls = [handoff("writer", f"c{number}", task=f"part {number}") for number in range(100)]
    model, run = boss([calls, "all done"], member(echoes))

    run_until_idle(timeout=BOUND_S)

    run.refresh_from_db()
    assert run.output == "all done"
    assert told(model) == {f"c{number}": (f"writer did part {number}", False) for number in range(100)}
    assert kinds(run).count("run.suspended") < 100


# ----------------------------------------------------------------------------------------------------- outcomes


def test_a_failure_is_words_for_the_model():
    model, run = boss([handoff("writer"), "I did it myself."], member(fails))

    run_until_idle()

    run.refresh_from_db()
    text, is_error = told(model)["c1"]
    assert (run.output, is_error) == ("I did it myself.", True)
    assert text.startswith("test/writer failed: out of ink. Ask another")


def test_a_cancelled_child_has_not_failed():
    model, run = boss([handoff("writer"), "ok"], member(waits))
    run_until_idle()

    cancel(Run.objects.get(parent=run).id, "not today")
    run_until_idle()

    text, is_error = told(model)["c1"]
    assert is_error
    assert text.startswith("test/writer was cancelled: not today.")
    assert "failed" not in text


def test_a_timeout_is_no_failure_and_leaves_the_child_at_work(clock):
    model, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(waits), ask_timeout=30.0))
    run_until_idle()

    clock.advance(31)
    run_until_idle()

    run.refresh_from_db()
    text, is_error = told(model)["c1"]
    assert (run.output, is_error) == ("ok", True)
    assert text.startswith("test/writer gave no answer within 30 s; it may still be at work.")
    assert "failed" not in text


def test_a_full_tree_is_words_for_the_model(settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 2}
    model, run = boss([[handoff("writer", "c1"), handoff("writer", "c2")], "ok"], member(echoes))

    run_until_idle()

    run.refresh_from_db()
    results = told(model)
    denied = [text for text, is_error in results.values() if is_error]
    assert (run.output, len(denied), Run.objects.filter(parent=run).count()) == ("ok", 1, 1)
    assert denied[0].startswith("test/writer was not started, nothing has been done: the tree has 2 live runs")


def test_an_agent_that_nobody_knows_is_words_for_the_model():
    model, run = boss([handoff("ghost"), "ok"], "test/ghost")

    run_until_idle()

    run.refresh_from_db()
    text, is_error = told(model)["c1"]
    assert (run.output, is_error) == ("ok", True)
    assert "no agent is registered as 'test/ghost'" in text


@pytest.mark.parametrize("arguments", [{"job": "x"}, {"task": " "}, {"task": 3}, {"task": "a", "more": 1}])
def test_a_bad_task_goes_back_to_the_model(arguments):
    model, run = boss([handoff("writer", **arguments), handoff("writer", "c2"), "ok"], member(echoes))

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "ok"
    assert told(model) == {"c1": ('handoff_writer takes one argument: {"task": "…"}, a text', True)}
    assert told(model, 2) == {"c2": ("writer did for writer", False)}
    assert Run.objects.filter(parent=run).count() == 1


def test_the_orchestrators_own_budget_bounds_its_tree():
    calls = [handoff("writer", "c1"), handoff("writer", "c2"), handoff("writer", "c3")]
    model, run = boss([calls, "ok"], member(echoes), spawn_budget=SpawnBudget(max_agents=3))

    run_until_idle()

    run.refresh_from_db()
    assert (run.output, Run.objects.filter(parent=run).count()) == ("ok", 2)
    (denied,) = [text for text, is_error in told(model).values() if is_error]
    assert "the tree has 3 live runs, the limit is 3" in denied


def test_a_slot_of_a_child_that_nobody_waits_for_is_not_free(clock):
    """A timeout ends the waiting, not the child."""
    script = [handoff("slow", "c1"), handoff("slow", "c2"), "ok"]
    slow = SubAgentConfig(member(waits, "slow"), ask_timeout=10)
    model, run = boss(script, slow, spawn_budget=SpawnBudget(max_agents=2))
    run_until_idle()

    clock.advance(11)
    run_until_idle()

    run.refresh_from_db()
    assert (run.output, Run.objects.filter(root=run).count()) == ("ok", 1)
    assert "was not started" in told(model, 2)["c2"][0]


@pytest.mark.parametrize("priority", list(Priority))
def test_the_childs_priority_is_the_configured_one(priority):
    _, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(echoes), priority=priority))

    run_until_idle()

    assert Run.objects.get(parent=run).priority == priority


def test_a_deeper_team_is_stopped_by_the_depth(settings):
    settings.RAVI = {**settings.RAVI, "MAX_DEPTH": 3}
    model, run = boss([handoff("boss"), "enough"], "orchestrator/boss")

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "enough"
    assert Run.objects.filter(root=run).count() == 3
    refused = [call.messages[-1].text for call in model.calls if call.turn == 1]
    assert any("below the limit of 3" in block.text for call in model.calls for block in call.messages[-1].content)
    assert len(refused) == 4


# --------------------------------------------------------------------------------------------- crash and replay


PARALLEL = [
    handoff("writer", "c1", task="one"),
    ToolUseBlock(tool_name="step", arguments={"name": "tool"}, call_id="c2"),
    handoff("critic", "c3", task="two"),
    handoff("writer", "c4", task="three"),
]
RESULTS = {
    "c1": ("writer did one", False),
    "c2": ("tool", False),
    "c3": ("critic did two", False),
    "c4": ("writer did three", False),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("dies", [1, 2, 3, 4, 5, 6, 7, 8, "end"])
def test_a_takeover_in_a_parallel_turn_spawns_none_twice(step, ran, clock, dies, written):
    model, run = boss([PARALLEL, "done"], member(echoes), member(echoes, "critic"), tools=[step])
    drive(run, dies=dies, written=written)
    clock.advance(conf.LEASE_S + 1)

    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output, run.error) == (Status.COMPLETED, "done", None)
    assert sorted(Run.objects.filter(parent=run).values_list("agent", flat=True)) == [
        "test/critic",
        "test/writer",
        "test/writer",
    ]
    assert told(model, -1) == RESULTS
    repeated = dies == 1 and not written  # the call whose row was lost
    assert len(model.calls) == 2 + repeated
    paths = {row.path for row in journal_of(run) if row.kind == "child.spawned"}
    assert paths == {f"turn1.call{place}.1" for place in (0, 2, 3)}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("dies", [1, 2, 3, 4, "end"])
def test_a_takeover_behind_the_answers_routes_each_to_its_call(step, ran, clock, dies, written):
    """The worker dies while it records what the children have answered, or the model's words on it."""
    model, run = boss([PARALLEL, "done"], member(echoes), member(echoes, "critic"), tools=[step])
    drive(run)
    for child in reversed(Run.objects.filter(parent=run).order_by("id")):
        drive(child)
    drive(run, dies=dies, written=written)
    clock.advance(conf.LEASE_S + 1)

    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output, ran) == (Status.COMPLETED, "done", ["tool"])
    assert told(model, -1) == RESULTS
    repeated = dies == 4 and not written
    assert len(model.calls) == 2 + repeated


@pytest.mark.parametrize("dies", [None, 3])
def test_the_deadline_of_an_answer_survives_a_crash(clock, dies):
    """It is the journaled one: a takeover does not begin to count anew."""
    model, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(waits), ask_timeout=100.0))
    drive(run, dies=dies, written=True)  # spawned, asked; in one case dead before it could suspend
    asked = next(row for row in journal_of(run) if row.kind == "ask")

    clock.advance(60)
    run_until_idle()
    run.refresh_from_db()
    assert (run.status, len(model.calls)) == (Status.SUSPENDED, 1)
    assert run.waiting_on[0]["until"][:19] == asked.request["until"][:19]

    clock.advance(39)
    run_until_idle()
    run.refresh_from_db()
    assert run.status == Status.SUSPENDED

    clock.advance(2)
    run_until_idle()
    run.refresh_from_db()
    assert run.output == "ok"
    assert "it may still be at work" in told(model)["c1"][0]


@pytest.mark.parametrize("dies", range(1, 7))
def test_a_refusal_is_told_again_though_there_is_room_by_then(settings, clock, dies):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 1}
    model, run = boss([handoff("writer"), "ok"], member(echoes))
    drive(run, dies=dies, written=True)
    recorded = "child.spawned" in kinds(run)
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 50}
    clock.advance(conf.LEASE_S + 1)

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "ok"
    assert Run.objects.filter(parent=run).count() == (0 if recorded else 1)
    assert told(model, -1)["c1"][1] is recorded


def test_an_edited_description_is_drift_alone(clock):
    model, run = boss([handoff("writer"), "ok"], SubAgentConfig(member(echoes), "Writes."))
    drive(run, dies=3, written=True)
    register(
        OrchestratorAgent("boss", model=model, sub_agents=[SubAgentConfig("test/writer", "Writes very well.", 60)])
    )

    take_over(clock, run)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output, kinds(run).count("replay.drift")) == (Status.COMPLETED, "ok", 1)
    assert Run.objects.filter(parent=run).count() == 1


def test_a_sub_agent_that_is_gone_blocks_the_run_that_has_used_it(clock):
    model, run = boss([handoff("writer"), "ok"], member(echoes))
    drive(run, dies=3, written=True)
    register(OrchestratorAgent("boss", model=model, sub_agents=[]))

    take_over(clock, run)

    run.refresh_from_db()
    assert run.status == Status.BLOCKED


# ------------------------------------------------------------------------------------------------------- nesting


def nested():
    """A boss whose sub-agent is an orchestrator of two."""
    lead_model = ScriptedModel(
        [[handoff("writer", "w"), handoff("critic", "k")], lambda messages, options: _joined(messages)], name="lead"
    )
    lead = OrchestratorAgent(
        "lead",
        model=lead_model,
        sub_agents=[SubAgentConfig(member(echoes)), SubAgentConfig(member(echoes, "critic"))],
    )
    model, run = boss([handoff("lead", task="both"), lambda messages, options: _joined(messages)], lead)
    return model, lead_model, run


def _joined(messages):
    return " + ".join(block.text for block in messages[-1].content)


def test_orchestrators_nest():
    _, _, run = nested()

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "writer did for writer + critic did for critic"
    tree = Run.objects.filter(root=run).order_by("depth", "agent").values_list("agent", "depth", "parent__agent")
    assert list(tree) == [
        ("orchestrator/lead", 1, "orchestrator/boss"),
        ("test/critic", 2, "orchestrator/lead"),
        ("test/writer", 2, "orchestrator/lead"),
    ]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("dies", [1, 2, 3, 4, 5, 6])
def test_a_takeover_in_the_middle_of_a_tree(clock, dies, written):
    _, lead_model, run = nested()
    drive(run)
    lead = Run.objects.get(parent=run)
    drive(lead, dies=dies, written=written)
    clock.advance(conf.LEASE_S + 1)

    run_until_idle()

    run.refresh_from_db()
    assert run.output == "writer did for writer + critic did for critic"
    assert Run.objects.filter(root=run).count() == 3
    assert len(lead_model.calls) == 2 + (dies == 1 and not written)


def test_a_cancelled_boss_takes_its_team_along():
    _, run = boss([handoff("writer"), "ok"], member(waits))
    run_until_idle()

    cancel(run.id, "enough")
    run_until_idle()

    assert set(Run.objects.values_list("status", flat=True)) == {Status.CANCELLED}


# ------------------------------------------------------------------------------------- approval, hooks, registry


def test_approval_covers_delegations(step):
    asked = []

    def decide(name, arguments, risk, ctx):
        asked.append((name, arguments, risk.value))
        return False

    model, run = boss([handoff("writer"), "ok"], member(echoes), approval_handler=decide, approval_required_risk="safe")

    run_until_idle()

    assert asked == [("handoff_writer", {"task": "for writer"}, "safe")]
    assert told(model)["c1"] == ("denied: handoff_writer was not approved; do not call it again unchanged", True)
    assert not Run.objects.filter(parent=run).exists()


def test_hooks_hear_of_a_handoff_once(clock):
    heard = []
    hooks = {HookEvent.HANDOFF: lambda call: heard.append(dict(call.data))}
    _, run = boss([handoff("writer"), "ok"], member(echoes), hooks=hooks)
    drive(run, dies=3, written=True)
    take_over(clock, run)

    run_until_idle()

    assert heard == [{"target": "test/writer", "run": str(Run.objects.get(parent=run).id)}]


def test_the_team_is_registered_with_its_orchestrator():
    first, second, own = member(echoes, "reg-a"), member(fails, "reg-a"), member(echoes, "reg-b")
    register(own)

    def team(*members):
        sub_agents = [SubAgentConfig(one) for one in members]
        lead = OrchestratorAgent("reg-lead", model=ScriptedModel("x"), sub_agents=sub_agents)
        register(OrchestratorAgent("reg-boss", model=ScriptedModel("x"), sub_agents=[SubAgentConfig(lead)]))

    try:
        team(first, member(fails, "reg-b"))
        assert world.get_agent("test/reg-a") is first
        assert world.get_agent("test/reg-b") is own  # it was registered by itself
        team(second)
        assert world.get_agent("test/reg-a") is second  # a later team's goes before an earlier one's
    finally:
        for address in ("test/reg-a", "test/reg-b", "orchestrator/reg-lead", "orchestrator/reg-boss"):
            world.unregister(address)


def test_an_orchestrators_handoffs_are_no_tools_for_others():
    boss(["x"], member(echoes))

    assert world.known_tools().get("handoff_writer") is None


def test_a_react_agent_may_be_a_member_and_keeps_its_own_history():
    poet = ScriptedModel(["Roses are red."], name="poet")
    model, _ = boss([handoff("poet"), "ok"], ReActAgent("poet", model=poet))

    run_until_idle()

    assert told(model) == {"c1": ("Roses are red.", False)}
    assert poet.calls[0].messages[-1].text == "for poet"


def test_submit_takes_the_orchestrator_itself():
    agent = OrchestratorAgent("own", model=ScriptedModel(["hi"]), sub_agents=[SubAgentConfig(member(echoes))])
    register(agent)

    run = submit(agent, "hello")
    run_until_idle()

    run.refresh_from_db()
    assert (run.agent, run.output) == (str(AgentId("orchestrator", "own")), "hi")


def test_an_answer_that_is_too_long_is_cut():
    async def long_winded(ctx, inbox):
        await ctx.reply(inbox[0], {"text": "x" * 1_000_010})

    model, _ = boss([handoff("writer"), "ok"], member(long_winded))

    run_until_idle()

    assert told(model)["c1"][0] == "x" * 1_000_000 + "\n… [10 more characters are not shown]"


async def _in_process():
    from tests.support.world import Runtime

    agent = OrchestratorAgent(
        "live",
        model=ScriptedModel([handoff("live-writer"), "ok"]),
        sub_agents=[SubAgentConfig(member(echoes, "live-writer"))],
    )
    async with Runtime(poll_s=0.05) as rt:
        await rt.register(agent)
        return await rt.result(await rt.submit(agent, "hello"), timeout=BOUND_S)


def test_the_runtime_registers_the_team_too():
    assert asyncio.run(_in_process()) == "ok"


def most(settings, size):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": size}


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_task_that_is_no_input_for_any_run_is_words_for_the_model(settings, takes_over):
    most(settings, 1000)
    config = SubAgentConfig(member(echoes), handoff=takes_over)
    model, run = boss([handoff("writer", task="é" * 501), "shorter, then"], config)

    run_until_idle()

    run.refresh_from_db()
    text, is_error = told(model)["c1"]
    assert (run.status, run.output, is_error) == (Status.COMPLETED, "shorter, then", True)
    assert "the task has 1004 bytes, the limit is 1000" in text
    assert not Run.objects.filter(parent=run).exists()


def test_a_task_of_the_longest_input_is_done(settings):
    most(settings, 1000)
    model, _ = boss([handoff("writer", task="é" * 499), "ok"], member(echoes))

    run_until_idle()

    assert told(model) == {"c1": (f"writer did {'é' * 499}", False)}


def test_a_takeover_is_told_again_that_the_task_is_too_long(settings, clock):
    """Also where the limit is another by then."""
    most(settings, 1000)
    model, run = boss([handoff("writer", task="x" * 1001), "ok"], member(echoes))
    drive(run, dies="end")
    clock.advance(conf.LEASE_S + 1)
    most(settings, 10_000)

    run_until_idle()

    run.refresh_from_db()
    assert (run.output, len(model.calls)) == ("ok", 2)
    assert not Run.objects.filter(parent=run).exists()


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
