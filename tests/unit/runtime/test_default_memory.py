"""Without `context=` a registered agent remembers its conversation."""

from typing import Any

import pytest

from ravi_django import (
    AgentId,
    ChatMessage,
    ContextConfig,
    OrchestratorAgent,
    ReActAgent,
    RunContext,
    SubAgentConfig,
    ToolUseBlock,
    create_assistant_agent,
    register,
    signal,
    tool,
)
from ravi_django.agents import current_meta
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Turn
from ravi_django.testing import ScriptedModel
from tests.support.runs import drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def prompts(agent: ReActAgent) -> list[list[str]]:
    """What the model was sent for two messages of one conversation."""
    register(agent)
    first = drive(make_run(str(agent.id), text="one"))
    drive(make_run(str(agent.id), text="two", session=first.session))
    return [[message.text for message in call.messages] for call in agent.model.calls]


@pytest.mark.parametrize(("options", "remembers", "turns"), [
    ({}, True, 4), ({"retention": "permanent"}, True, 4), ({"retention": "run"}, False, 0),
    ({"retention": "none"}, False, 0), ({"context": ContextConfig()}, False, 0),
])  # fmt: skip
def test_an_agent_remembers_unless_it_is_told_not_to(options: dict[str, Any], remembers: bool, turns: int) -> None:
    sent = prompts(ReActAgent("helper", model=ScriptedModel(["yes"]), **options))
    assert sent == [["one"], ["one", "yes", "two"] if remembers else ["two"]]
    assert Turn.objects.count() == turns


def test_teams_their_members_and_assistants_remember() -> None:
    member = create_assistant_agent(ScriptedModel(["yes"]), key="member")
    team = OrchestratorAgent("lead", model=ScriptedModel(["yes"]), sub_agents=[SubAgentConfig(member)])
    assert prompts(team)[1] == prompts(member)[1] == ["one", "yes", "two"]
    with pytest.raises(InvalidInputError, match="ContextConfig"):
        ReActAgent("helper", model=team.model, context=ContextConfig(), retention="none")


class Elsewhere:
    agent_id = AgentId("react", "helper")

    def __init__(self) -> None:
        self.read: list[str | None] = []

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        meta = current_meta()
        assert meta is not None
        self.read.append(meta.tenant_id)
        return [ChatMessage.of("user", f"window {len(self.read)}")]


@tool
async def wait(ctx: RunContext) -> str:
    """Wait."""
    return str(await ctx.sleep_until_signal("go"))


def test_a_window_of_ones_own_is_read_once_a_run_and_the_same_in_a_replay() -> None:
    window, model = Elsewhere(), ScriptedModel([ToolUseBlock(tool_name="wait", arguments={}, call_id="c1"), "done"])
    register(ReActAgent("helper", model=model, tools=[wait], context=window))
    run = drive(make_run("react/helper", text="hi", tenant="acme"))
    signal(run, "go", "now")

    assert drive(run).output == "done"
    assert (window.read, current_meta()) == (["acme"], None)
    assert [[m.text for m in call.messages[:2]] for call in model.calls] == [["window 1", "hi"]] * 2
    assert not Turn.objects.exists()
    with pytest.raises(TypeError, match="get_prompt_window"):
        ReActAgent("helper", model=model, context="acme")  # type: ignore[arg-type]
