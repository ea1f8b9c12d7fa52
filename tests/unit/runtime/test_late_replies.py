"""The reply to a delegation that comes after its timeout: recorded, and no message that would begin another turn."""

import pytest

from ravi_django import register, signal, tool
from ravi_django.agents import AgentTool, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.agents.flow import BaseAgentProxy, PauseForChildResult, SubagentCall, TurnEnd
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message, RunContext, ToolUseBlock
from ravi_django.models import Ask, InboxMessage, Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support.runs import CodeAgent, every_death, idle, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]

SLOW = AgentId("test", "slow")


@pytest.fixture(autouse=True)
def _slow():
    async def story(ctx, inbox):
        said = await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], {"text": said})

    register(CodeAgent(story, key="slow"))


@tool
async def linger(ctx: RunContext) -> str:
    """Linger."""
    return str(await ctx.sleep_until_signal("on"))


@tool
async def hire(ctx: RunContext) -> PauseForChildResult:
    """Hire."""
    asked = boot()
    return PauseForChildResult(await ctx.spawn(SLOW, asked), asked, timeout=10)


def boot():
    return Message(target=SLOW, payload=ChatPayload(message=ChatMessage.of("user", "work")))


def call(name, call_id="c1", **arguments):
    return ToolUseBlock(tool_name=name, arguments=arguments, call_id=call_id)


def boss(kind, script):
    """A run of an agent that delegates as `kind` says, with 10 seconds of patience, and lingers in its next turn."""
    model = ScriptedModel([*script, "another turn"], name="boss")
    if kind == "orchestrator":
        team = [SubAgentConfig(SLOW, ask_timeout=10)]
        agent = OrchestratorAgent("boss", model=model, sub_agents=team, tools=[linger], id="react/boss")
    else:
        agent = ReActAgent("boss", model=model, tools=[AgentTool(SLOW, timeout=10), hire, linger])
    register(agent)
    return model, make_run("react/boss")


def replied_late(clock, run):
    """The child replies behind the timeout, and then the run goes on."""
    run_until_idle()
    clock.advance(11)
    run_until_idle()
    signal(Run.objects.get(parent=run).id, "go", "too late")
    run_until_idle()
    signal(run.id, "on", "now")
    return idle(run)


DELEGATIONS = [
    ("orchestrator", call("handoff_slow", task="work")),
    ("tool", call("handoff_slow", task="work")),
    ("pause", call("hire")),
]


@pytest.mark.parametrize(("kind", "delegation"), DELEGATIONS, ids=[kind for kind, _ in DELEGATIONS])
def test_a_late_reply_to_a_delegation_is_heard_by_nobody(clock, kind, delegation):
    model, run = boss(kind, [delegation, call("linger", "c2"), "final answer"])
    replied_late(clock, run)
    assert (run.status, run.output, len(model.calls)) == (Status.COMPLETED, "final answer", 3)
    assert "gave no answer within 10 s" in model.calls[1].messages[-1].content[0].text
    assert InboxMessage.objects.filter(run=run).count() == 1
    assert Ask.objects.get().outcome == "timed_out"
    child = Run.objects.get(parent=run)
    assert child.status == Status.COMPLETED
    (row,) = [row for row in journal_of(child) if row.kind == "ask.replied"]
    assert row.result == {"result": {"text": "too late"}}


def test_nor_where_the_worker_of_the_one_who_asked_died(clock):
    def story(drive):
        _, run = boss("orchestrator", [call("handoff_slow", task="work"), call("linger", "c2"), "final answer"])
        return replied_late(clock, drive(run))

    for run, _ in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "final answer")
        assert InboxMessage.objects.filter(run=run).count() == 1


@pytest.mark.parametrize("form", ["call", "pause"])
def test_a_generator_gets_no_other_prompt_of_it(clock, form):
    prompts = []

    async def story(self, prompt):
        prompts.append(prompt.text)
        if form == "call":
            answer = yield SubagentCall(SLOW, "work", timeout=10)
        else:
            asked = boot()
            answer = yield PauseForChildResult(await self.ctx.spawn(SLOW, asked), asked, timeout=10)
        await self.ctx.sleep_until_signal("on")
        yield TurnEnd(answer.kind)

    register(type("Generator", (BaseAgentProxy,), {"next_turn": story})("generator"))
    run = replied_late(clock, make_run("agent/generator"))
    assert (run.status, run.output) == (Status.COMPLETED, "timed_out")
    assert "too late" not in prompts
