"""A span of time is seconds or a timedelta, wherever one is taken."""

from datetime import timedelta
from typing import Any

import pytest

from ravi_django import follow, schedule, submit, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent
from ravi_django.agents.react.orchestrator import SubAgentConfig
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import HumanInput, InvalidInputError, PauseForInputResult
from ravi_django.models import HumanRequest, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)
MINUTE = timedelta(minutes=1)


async def nothing(ctx, inbox):
    return "done"


@pytest.mark.parametrize("minute", [60, MINUTE])
def test_a_wait_for_a_signal_ends_after_its_timeout(clock, minute):
    async def story(ctx, inbox):
        return str(await ctx.sleep_until_signal("paid", timeout=minute))

    code(story)
    run = submit("test/code", "hi")
    for seconds, status in ((0, Status.SUSPENDED), (59, Status.SUSPENDED), (1, Status.COMPLETED)):
        clock.advance(timedelta(seconds=seconds))
        run_until_idle()
        run.refresh_from_db()
        assert run.status == status
    assert (run.output, run.wait(timeout=MINUTE).result(timeout=MINUTE)) == ("None", "None")


def test_two_ends_of_one_wait_are_refused(clock):
    async def story(ctx, inbox):
        await ctx.sleep_until_signal("paid", until=60, timeout=60)

    code(story)
    run = submit("test/code", "hi")
    run_until_idle()
    run.refresh_from_db()
    assert run.error["message"] == "until and timeout both end the wait: pass one of them"


def test_a_pause_of_a_tool_expires_after_a_timedelta(clock):
    @tool
    def pay(answer: HumanInput | None = None) -> Any:
        """Pay."""
        return PauseForInputResult("Pay?", timeout=MINUTE)

    async def story(ctx, inbox):
        return (await ctx.tool("pay")).text

    code(story, tools=[pay])
    submit("test/code", "hi")
    run_until_idle()
    assert HumanRequest.objects.get().expires_at == clock.now + MINUTE


def test_options_take_both(clock):
    code(nothing)
    assert follow("test/code", "news/all", every_s=MINUTE)[0].every_s == 60
    row = schedule("test/code", "hi", name="tick", every=timedelta(hours=1), jitter_s=MINUTE)
    assert (row.every_s, row.jitter_s) == (3600, 60)
    with pytest.raises(InvalidInputError, match="every_s is a whole number"):
        follow("test/code", "news/all", every_s=timedelta(seconds=1.5))

    assert tool(timeout=MINUTE, name="x")(lambda: "x").timeout == 60
    assert AgentTool("test/code", timeout=MINUTE).ask_timeout == 60
    team = OrchestratorAgent(
        "team",
        model=ScriptedModel([]),
        sub_agents=[SubAgentConfig(ReActAgent("helper", model=ScriptedModel([])), ask_timeout=MINUTE)],
    )
    assert [one["ask_timeout"] for one in team.spec()["sub_agents"]] == [60.0]
    model = LLMFactory("gpt-4o", timeout=MINUTE, fallbacks=["gpt-4o-mini"], fallback_after=MINUTE).build()
    assert (model.fallback_after, model.models[0].timeout) == (60, 60)
