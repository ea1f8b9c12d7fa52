"""OrchestratorAgent without a runtime: its tools, what it refuses, what it says of itself."""

from typing import Any

import pytest

from ravi_django.agents import AgentTool, OrchestratorAgent, ReActAgent, SubAgentConfig, tool
from ravi_django.agents.tools.delegate import DelegateTool
from ravi_django.kernel import (
    AgentId,
    AskOutcome,
    FinishAgentResult,
    GenerationOptions,
    InvalidInputError,
    Message,
    Priority,
    RunHandle,
    SpawnBudget,
    ToolRefused,
    ToolSpec,
)
from tests.support.cases import case
from tests.support.fake_context import FakeContext, call
from tests.support.react import Model, add, ask, results_in


def team(*sub_agents: Any, **options: Any) -> OrchestratorAgent:
    configs = [one if isinstance(one, SubAgentConfig) else SubAgentConfig(one) for one in sub_agents]
    return OrchestratorAgent("boss", **{"model": Model(), "sub_agents": configs, **options})


class TeamContext(FakeContext):
    """One whose children reply to their task in capitals."""

    agent_id = AgentId("orchestrator", "boss")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.spawned: list[tuple[str, Priority | None, Message]] = []
        self.asked: list[tuple[RunHandle, Message, float]] = []

    async def spawn(
        self, target: AgentId, boot: Message, *, priority: Priority | None = None, memory: str
    ) -> RunHandle:
        self.spawned.append((str(target), priority, boot))
        return RunHandle(f"run of {target.key}", target)

    async def ask(self, target: RunHandle, message: Message, *, timeout: float) -> AskOutcome:
        self.asked.append((target, message, timeout))
        return AskOutcome("replied", {"text": message.payload.message.text.upper()}, target)


def test_the_model_is_shown_a_tool_for_each_sub_agent_beside_the_others() -> None:
    made = team(SubAgentConfig("react/writer", "Writes."), "react/critic", tools=[add])
    shown = {spec.name: spec.description for spec in made._offers.plain.tools}
    assert (list(shown), shown["handoff_writer"]) == (["add", "handoff_writer", "handoff_critic"], "Writes.")
    assert shown["handoff_critic"] == "Hand a task to the agent react/critic and get its answer."
    # tools of base options come beside the sub agents
    made = team("react/writer", base_options=GenerationOptions(tools=[ToolSpec(name="add")], temperature=0.5))
    assert [spec.name for spec in made._offers.plain.tools] == ["add", "handoff_writer"]
    assert made._offers.plain.temperature == 0.5
    assert team("react/writer", initial_tool_choice="handoff_writer")._offers.plain.tools
    assert (team().id, team(id="team/lead").id) == (AgentId("orchestrator", "boss"), AgentId("team", "lead"))


def test_a_delegate_tool_refuses_to_be_called() -> None:
    with pytest.raises(ToolRefused, match=r"AgentTool\('react/writer'\)"):
        DelegateTool("react/writer").execute(task="x")


async def test_a_call_spawns_and_asks_with_the_same_message() -> None:
    made = team(SubAgentConfig("react/writer", ask_timeout=9, priority=Priority.HIGH))
    ctx = TeamContext([call("handoff_writer", "c1", task="rhyme"), "done"])
    await made.run(ctx, [ask()])
    ((target, priority, boot),) = ctx.spawned
    assert (target, priority, boot.payload.message.text) == ("react/writer", Priority.HIGH, "rhyme")
    assert boot.metadata["parent_agent_id"] == "orchestrator/boss"
    assert ctx.asked == [(RunHandle("run of writer", AgentId("react", "writer")), boot, 9.0)]
    assert results_in(ctx.views[1]) == [("c1", "RHYME", False)]
    assert ctx.effects == [("turn1", "llm"), ("turn2", "llm")]  # no tool was called


async def test_arguments_that_are_nested_without_end_are_words_for_the_model() -> None:
    deep: Any = "x"
    for _ in range(60):
        deep = [deep]
    ctx = TeamContext([call("handoff_writer", "c1", task=deep), "done"])
    await team("react/writer").run(ctx, [ask()])
    assert results_in(ctx.views[1]) == [("c1", "the arguments are nested more than 50 levels deep", True)]
    assert ctx.spawned == []


async def test_a_handoff_is_a_result_that_ends_the_message() -> None:
    made = team(SubAgentConfig("react/writer", handoff=True))
    result = await made._perform(TeamContext(), call("handoff_writer", task="rhyme"))
    assert (result.text, result.status) == ("handed over to react/writer", "ok")
    assert result.finish == FinishAgentResult(AgentId("react", "writer"), "rhyme")


@pytest.mark.parametrize("other", ["team/writer", "react/writer", "react/wri.ter"])
def test_two_sub_agents_of_one_tool_name_are_refused(other: str) -> None:
    first = "react/wri_ter" if "." in other else "react/writer"
    with pytest.raises(InvalidInputError, match=f"{first} and {other} have the same tool name handoff_wri") as caught:
        team(first, other)
    assert caught.value.field == "sub_agents"


def test_a_tool_of_a_sub_agents_name_is_refused() -> None:
    @tool(name="handoff_writer")
    def own() -> str:
        return ""

    for tools in ([own], [AgentTool("react/writer")]):
        with pytest.raises(InvalidInputError, match="the tool name handoff_writer is taken by the sub-agent") as caught:
            team("react/writer", tools=tools)
        assert caught.value.field == "tools"


def test_a_sub_agent_is_a_config() -> None:
    with pytest.raises(InvalidInputError, match=r"pass SubAgentConfig\('react/writer'\)"):
        OrchestratorAgent("boss", model=Model(), sub_agents=["react/writer"])
    # a config is checked
    for fields, field in [
        ({"ask_timeout": 0}, "ask_timeout"), ({"ask_timeout": True}, "ask_timeout"),
        ({"ask_timeout": float("inf")}, "ask_timeout"), ({"priority": 3}, "priority"),
        ({"priority": "high"}, "priority"), ({"agent": 7}, "agent"), ({"memory": "run"}, "memory"),
        ({"context": False}, "context"),
            ({"agent": "writer"}, None),
    ]:  # fmt: skip
        with case(fields, field):
            with pytest.raises(InvalidInputError) as caught:
                SubAgentConfig(**{"agent": "react/writer", **fields})
            if field is not None:
                assert caught.value.field == field
    # its spec names the team
    writer = ReActAgent("writer", model=Model())
    made = team(
        SubAgentConfig(writer, "Writes.", 30, Priority.HIGH),
        SubAgentConfig("react/critic", handoff=True, memory="none"),
        spawn_budget=SpawnBudget(max_agents=5),
    )
    said = made.spec()
    assert said["class"] == "OrchestratorAgent"
    assert said["spawn_budget"] == {"max_agents": 5, "allow_preempt": True}
    assert said["sub_agents"] == [
        {"agent": "react/writer", "tool": "handoff_writer", "description": "Writes.", "ask_timeout": 30.0,
            "priority": "high", "handoff": False, "memory": "conversation", "context": True},
        {"agent": "react/critic", "tool": "handoff_critic", "description": "", "ask_timeout": 120.0,
            "priority": "normal", "handoff": True, "memory": "none", "context": True},
    ]  # fmt: skip
    assert "spawn_budget" not in team().spec()
