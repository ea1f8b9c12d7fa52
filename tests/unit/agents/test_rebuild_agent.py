"""An agent made of its spec is the agent that one would write."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.agents import AgentTool, ReActAgent, SlidingWindowCompaction, Toolbox, rebuild_agent, tool
from ravi_django.agents.compaction import TokenBudgetComposed
from ravi_django.agents.history import InMemoryHistoryProvider
from ravi_django.capabilities.llm.fallback import FallbackModel
from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
from ravi_django.kernel import AgentId, InvalidInputError, TopicId
from ravi_django.testing import ScriptedModel
from tests.unit.agents.test_spec import WHOLE

TOOLS = Toolbox([CalculatorTool(), CurrentTimeTool()])


def build_model(name: str, **options: Any) -> ScriptedModel:
    model = ScriptedModel("hello", name=name)
    model.options = options  # type: ignore[attr-defined]
    return model


def rebuilt(spec: Any, **options: Any) -> Any:
    return rebuild_agent(spec, **{"tools": TOOLS, "build_model": build_model, **options})


def test_every_part_of_the_spec_reaches_the_agent() -> None:
    memory = InMemoryHistoryProvider()

    agent = rebuilt(WHOLE, id="team/adder", memory=memory)

    assert agent.id == AgentId("team", "adder")
    assert (agent.name, agent.model.name, agent.model.options) == (
        "Adder",
        "gpt-4o-mini",
        {"fallbacks": ["claude-haiku"]},
    )
    assert [tool.name for tool in agent.tools] == ["calculator", "handoff_writer", "handoff_checker"]
    assert (agent.context.history, agent.context.retention) == (memory, "run")
    assert [type(part) for part in agent.context.pipeline.strategies] == [SlidingWindowCompaction, TokenBudgetComposed]
    assert agent.context.pipeline.strategies[0].max_messages == 20
    assert agent.context.pipeline.strategies[1].max_tokens == 4000
    said = agent.spec()
    assert said["options"] == {**WHOLE["options"]}
    assert (said["max_iterations"], said["initial_tool_choice"]) == (4, "handoff_writer")
    assert said["approval_required_risk"] == "critical"
    assert said["budget"] == {"max_tokens": 1000, "deadline_s": 60.0}
    assert said["system_instructions"] == WHOLE["system_instructions"]
    assert said["result_schema"] == WHOLE["result_schema"]


def test_a_sub_agent_is_a_tool_with_its_description_and_patience() -> None:
    checker = rebuilt(WHOLE).tools.get("handoff_checker")

    assert isinstance(checker, AgentTool)
    assert (str(checker.agent_id), checker.description, checker.ask_timeout) == ("react/checker", "Checks.", 5.0)


def test_the_dict_saved_at_submit_time_is_read() -> None:
    agent = rebuilt(
        {
            "model": "gpt-4o-mini",
            "system_instructions": "Be brief.",
            "tool_names": ["calculator"],
            "max_iterations": 3,
            "session_id": "0192",
            "run_id": "0193",
            "agent_id": "react/helper",
        }
    )

    assert (str(agent.id), agent.max_iterations, agent.tools.names()) == ("react/helper", 3, ["calculator"])
    assert agent.context.pipeline.strategies[0].max_messages == 100


def test_the_key_given_wins_over_the_saved_address() -> None:
    assert str(rebuilt({"model": "m", "agent_id": "react/helper"}, key="other").id) == "react/other"
    assert str(rebuilt({"model": "m", "key": "mine"}).id) == "react/mine"
    assert str(rebuilt({"model": "m"}).id) == "react/assistant"


def test_what_an_agent_says_of_itself_makes_it_again() -> None:
    first = ReActAgent(
        "helper",
        model=ScriptedModel("hi", name="m"),
        tools=TOOLS.all(),
        system_instructions="Be brief.",
        max_iterations=7,
        max_parallel_tools=2,
        output_topic=TopicId("news"),
    )

    again = rebuilt(first.spec())

    assert again.spec() == first.spec()


def test_instructions_that_a_function_makes_are_not_taken_for_a_text() -> None:
    first = ReActAgent("helper", model=ScriptedModel("hi"), system_instructions=lambda ctx: "made")

    with pytest.raises(InvalidInputError) as caught:
        rebuilt(first.spec())

    assert caught.value.field == "system_instructions"
    assert rebuilt(first.spec(), system_instructions="Be brief.").system_instructions == "Be brief."


def test_keywords_win_over_the_spec() -> None:
    agent = rebuilt(WHOLE, system_instructions="Rendered.", max_iterations=1)

    assert (agent.system_instructions, agent.max_iterations) == ("Rendered.", 1)


def test_a_tool_that_is_not_there_is_named() -> None:
    @tool
    def lookup() -> str:
        """Look."""
        return ""

    with pytest.raises(InvalidInputError) as caught:
        rebuilt({"model": "m", "tool_names": ["lookup", "calculator"]}, tools=[lookup])

    assert caught.value.field == "tool_names.1"
    assert "lookup" in str(caught.value)


def test_what_an_agent_says_of_itself_has_its_fallbacks_and_its_window() -> None:
    model = FallbackModel([ScriptedModel("a", name="first"), ScriptedModel("b", name="second")])
    agent = rebuilt({"model": "first", "window": {"messages": 20, "tokens": 4000}}, model=model)

    again = rebuilt(agent.spec())

    assert (again.model.name, again.model.options) == ("first", {"fallbacks": ["second"]})
    assert [type(part) for part in again.context.pipeline.strategies] == [SlidingWindowCompaction, TokenBudgetComposed]
    assert again.context.pipeline.strategies[0].max_messages == 20
    assert again.context.pipeline.strategies[1].max_tokens == 4000
    assert rebuilt(rebuilt({"model": "m", "window": 7}).spec()).context.pipeline.strategies[0].max_messages == 7
