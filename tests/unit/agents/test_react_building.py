import json
from typing import Any

import pytest

from ravi_django.agents import (
    ContextConfig,
    InMemoryHistoryProvider,
    ReActAgent,
    create_assistant_agent,
)
from ravi_django.kernel import (
    Agent,
    AgentId,
    ExecutionBudget,
    GenerationOptions,
    InvalidInputError,
    TopicId,
)
from tests.support.fake_context import FakeContext
from tests.support.react import AGENT, Model, add, agent, ask

pytestmark = pytest.mark.asyncio


async def test_an_agent_is_an_agent() -> None:
    made = agent()

    assert isinstance(made, Agent)
    assert made.id == AGENT
    assert agent(id=AgentId("bot", "x", "acme")).id == agent(id="acme/bot/x").id
    assert made.tools.names() == ["add", "echo", "pay", "whoami"]


async def test_the_minimal_agent_needs_a_key_and_a_model() -> None:
    ctx = FakeContext(["hi"])

    assert await ReActAgent("helper", model=Model()).run(ctx, [ask()]) == "hi"  # type: ignore[arg-type]
    assert ctx.options[0] is not None
    assert ctx.options[0].tools == []


async def test_spec_is_json_and_changes_with_the_agent() -> None:
    def spec(**options: Any) -> str:
        return json.dumps(agent(**options).spec(), sort_keys=True)

    assert json.loads(spec())["model"] == "fake-model"
    assert json.loads(spec())["tools"][2]["risk"] == "high"
    assert spec() == spec()
    variants = [
        {"system_instructions": "x"},
        {"max_iterations": 3},
        {"tools": [add]},
        {"budget": ExecutionBudget(max_turns=1)},
        {"base_options": GenerationOptions(temperature=1)},
        {"initial_tool_choice": "add"},
        {"output_topic": TopicId("news")},
        {"approval_required_risk": "critical"},
        {"context": ContextConfig(retention="none")},
        {"name": "Other"},
    ]
    assert len({spec(), *(spec(**variant) for variant in variants)}) == 1 + len(variants)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "LLMFactory"),
        ({"model": "gpt-4o"}, "must be a ChatModel"),
        ({"max_iterations": 0}, "max_iterations is a whole number from 1"),
        ({"max_iterations": "3"}, "max_iterations is a whole number from 1"),
        ({"max_parallel_tools": 0}, "max_parallel_tools is a whole number from 1"),
        ({"initial_tool_choice": "search"}, "is no tool of react/helper; it has add, echo, pay, whoami"),
        ({"initial_tool_choice": "required", "tools": []}, "it has none"),
        ({"approval_required_risk": "huge"}, "huge"),
        ({"tools": "calculator"}, "tools is a list"),
    ],
)
async def test_wrong_options_are_refused_with_the_mend(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidInputError)) as caught:
        agent(**options)

    assert words in str(caught.value)


async def test_factory_wires_the_everyday_agent() -> None:
    history = InMemoryHistoryProvider()
    made = create_assistant_agent(
        model_client=Model(), tools=[add], system_instructions="Be brief.", memory=history, max_iterations=4
    )

    assert made.id == AgentId("react", "assistant")
    assert made.context.history is history
    assert made.context.pipeline.reach == 100  # type: ignore[attr-defined]
    assert (made.max_iterations, made.tools.names()) == (4, ["add"])
