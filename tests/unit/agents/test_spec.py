"""A spec is read strictly, and an agent made of its spec is the agent that one would write."""

from typing import Any

import pytest

from ravi_django.agents import (
    AgentSpec,
    AgentTool,
    ReActAgent,
    SlidingWindowCompaction,
    Toolbox,
    rebuild_agent,
    tool,
    validate_spec,
)
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.history import InMemoryHistoryProvider
from ravi_django.calls.llm.fallback import FallbackModel
from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
from ravi_django.kernel import AgentId, InvalidInputError, TopicId
from ravi_django.testing import ScriptedModel
from tests.support.cases import case, refused

TOOLS = ["calculator", "current_time"]
AGENTS = ["react/writer", "react/checker"]
WHOLE: dict[str, Any] = {
    "model": "gpt-4o-mini", "fallbacks": ["claude-haiku"], "system_instructions": "Hello {{ customer }}.",
    "variables": {"customer": {"description": "whom", "default": "you", "required": False}},
    "tool_names": ["calculator"],
    "sub_agents": ["react/writer", {"agent": "react/checker", "description": "Checks.", "timeout": 5}],
    "max_iterations": 4, "budget": {"max_tokens": 1000, "deadline_s": 60}, "retention": "run",
    "approval_required_risk": "critical", "approvers": {"critical": "group:directors", "*": "staff"},
    "starter_prompts": ["What is 2 + 2?"], "welcome": "Good day.", "initial_tool_choice": "handoff_writer",
    "options": {"temperature": 0.2, "max_tokens": 50, "reasoning_effort": "low", "stop": ["END"]},
    "window": {"messages": 20, "tokens": 4000},
    "result_schema": {"type": "object", "properties": {"sum": {"type": "number"}}}, "name": "Adder",
    "description": "Adds.",
}  # fmt: skip


def test_a_whole_spec_is_read_and_written_back() -> None:
    spec = validate_spec(WHOLE, TOOLS, AGENTS)
    again = validate_spec(spec.to_json(), TOOLS, AGENTS)
    assert (again, spec.to_json()["sub_agents"]) == (spec, WHOLE["sub_agents"])
    assert (spec.max_iterations, spec.retention, spec.window.tokens) == (4, "run", 4000)
    # a row keeps what is not a default
    assert validate_spec({"model": "m", "window": 20}).to_json() == {"model": "m", "window": {"messages": 20}}
    plain = {"agent": "react/a", "timeout": 120, "description": ""}
    assert validate_spec({"model": "m", "sub_agents": [plain]}).to_json()["sub_agents"] == ["react/a"]
    # what is not known is not checked
    spec = validate_spec({"model": "m", "tool_names": ["anything"], "sub_agents": ["any/body"]})
    assert isinstance(spec, AgentSpec) and validate_spec(spec) is spec
    # names that providers have are taken
    names = [
        "ollama/llama3:8b",
        "vertex_ai/claude-3@20240229",
        "bedrock/arn:aws:bedrock:us-east-1:1:inference-profile/x.y-v1:0",
        "openrouter/meta-llama/llama-3.1-8b-instruct:free",
    ]
    extra = {"seed": 7, "top_k": 4, "verbosity": "low", "logit_bias": {"5": -100}}
    spec = validate_spec({"model": names[0], "fallbacks": names[1:], "options": {"extra": extra}})
    assert spec.options.generation.extra == extra


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"model": None}, "model", "string"), ({"model": " "}, "model", "pattern"),
        ({"modle": "x"}, "modle", "the fields are: model, fallbacks"),
        ({"tool_names": ["calculator", "calculater"]}, "tool_names.1", "the tools are: calculator, current_time"),
        ({"tool_names": ["calculator", "calculator"]}, "tool_names.1", "once"),
        ({"tool_names": "calculator"}, "tool_names", "list"),
        ({"sub_agents": ["react/writer", "react/nobody"]}, "sub_agents.1", "react/checker, react/writer"),
        ({"sub_agents": ["writer"]}, "sub_agents.0", "type/key"),
        ({"sub_agents": [{"agent": "react/writer", "timeout": 0}]}, "sub_agents.0.timeout", "greater than 0"),
        ({"sub_agents": ["react/writer", "team/writer"]}, "sub_agents.1", "handoff_writer"),
        ({"budget": {"max_tokens": 0}}, "budget.max_tokens", "1"),
        ({"budget": {"max_tokns": 1}}, "budget.max_tokns", "max_tokens, max_cost_usd"),
        ({"variables": {"a": {"defualt": 1}}}, "variables.a.defualt", "description, default, required"),
        ({"options": {"temperature": -1}}, "options.temperature", "0"),
        ({"options": {"temprature": 1}}, "options.temprature", "temperature, top_p"),
        ({"window": 0}, "window.messages", "1"), ({"window": {"token": 1}}, "window.token", "messages, tokens"),
        ({"client_tools": "yes"}, "client_tools.bool", "bool"), ({"client_tools": 1}, "client_tools.bool", "bool"),
        ({"max_iterations": 0}, "max_iterations", "1"), ({"retention": "forever"}, "retention", "'permanent'"),
        ({"approval_required_risk": "low"}, "approval_required_risk", "'critical'"),
        ({"initial_tool_choice": "search"}, "initial_tool_choice", "auto, none, required, calculator"),
        ({"result_schema": {"type": "objekt"}}, "result_schema", "JSON schema"),
        ({"welcome": "a\0b"}, "welcome", "NUL"), ({"starter_prompts": ["a", "b\0"]}, "starter_prompts.1", "NUL"),
        ({"variables": {"a\0": {}}}, "variables", "NUL"), ({"name": "\ud800"}, "name", "surrogate"),
        ({"options": {"extra": {"api_key": "sk-zanzibar"}}}, "options.extra.api_key", "environment"),
        ({"variables": {"password": {"default": "1234"}}}, "variables.password", "environment"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_place_with_the_mend(change: dict[str, Any], field: str, words: str) -> None:
    known_agents = [*AGENTS, "team/writer"] if "team/writer" in str(change) else AGENTS
    with pytest.raises(InvalidInputError) as caught:
        validate_spec({"model": "m", "tool_names": ["calculator"], **change}, TOOLS, known_agents)
    assert caught.value.field == field
    assert words in str(caught.value) and "sk-zanzibar" not in str(caught.value)


def test_what_is_nested_without_end_is_refused() -> None:
    for field, place in [
        ("options", "options.extra"), ("result_schema", "result_schema"), ("variables", "variables.a"),
    ]:  # fmt: skip
        with case(field, place):
            deep: Any = {}
            for _ in range(900):
                deep = {"properties": deep}
            value = {"options": {"extra": deep}, "result_schema": deep, "variables": {"a": {"default": deep}}}[field]
            with pytest.raises(InvalidInputError, match="more than") as caught:
                validate_spec({"model": "m", field: value})
            assert caught.value.field == place
    # a spec is an object
    for spec in ["gpt", None, ["gpt"]]:
        with case(spec), refused("spec"):
            validate_spec(spec)
    # a tool must be there to be required
    with pytest.raises(InvalidInputError, match="not one of auto, none"):
        validate_spec({"model": "m", "initial_tool_choice": "required"})


def test_a_spec_has_no_say_in_where_the_keys_of_the_site_go() -> None:
    places = "base_url api_base custom_llm_provider headers extra_headers success_callback fallbacks model_list"
    for name in (
        *places.split(),
        *["use_litellm_proxy", "api_version", "mock_response", "metadata", "vertex_location", "model"],
    ):
        with pytest.raises(InvalidInputError, match="top_k") as caught:
            validate_spec({"model": "m", "options": {"extra": {"seed": 7, name: "https://evil.example"}}})
        assert caught.value.field == f"options.extra.{name}"
    # a model's name is no address
    for name in ("huggingface/https://evil.example", "openai//evil.example/v1", "gemini/../../x?key="):
        with refused("model", name):
            validate_spec({"model": name})
    with refused("fallbacks.1"):
        validate_spec({"model": "m", "fallbacks": ["n", "http:\\\\evil.example"]})


BOX = Toolbox([CalculatorTool(), CurrentTimeTool()])


def build_model(name: str, **options: Any) -> ScriptedModel:
    model = ScriptedModel("hello", name=name)
    model.options = options
    return model


def rebuilt(spec: Any, **options: Any) -> Any:
    return rebuild_agent(spec, **{"tools": BOX, "build_model": build_model, **options})


def test_every_part_of_the_spec_reaches_the_agent() -> None:
    memory = InMemoryHistoryProvider()
    agent = rebuilt(WHOLE, id="team/adder", memory=memory)
    assert agent.id == AgentId("team", "adder")
    assert (agent.name, agent.model.name, agent.model.options) == (
        "Adder", "gpt-4o-mini", {"fallbacks": ["claude-haiku"]},
    )  # fmt: skip
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
    # a sub agent is a tool with its description and patience
    checker = rebuilt(WHOLE).tools.get("handoff_checker")
    assert isinstance(checker, AgentTool)
    assert (str(checker.agent_id), checker.description, checker.ask_timeout) == ("react/checker", "Checks.", 5.0)
    # keywords win over the spec
    agent = rebuilt(WHOLE, system_instructions="Rendered.", max_iterations=1)
    assert (agent.system_instructions, agent.max_iterations) == ("Rendered.", 1)


def test_the_dict_saved_at_submit_time_is_read() -> None:
    agent = rebuilt(
        {"model": "gpt-4o-mini", "system_instructions": "Be brief.", "tool_names": ["calculator"],
            "max_iterations": 3, "session_id": "0192", "run_id": "0193", "agent_id": "react/helper"}
    )  # fmt: skip
    assert (str(agent.id), agent.max_iterations, agent.tools.names()) == ("react/helper", 3, ["calculator"])
    assert agent.context.pipeline.strategies[0].max_messages == 100
    # the key given wins over the saved address
    assert str(rebuilt({"model": "m", "agent_id": "react/helper"}, key="other").id) == "react/other"
    assert str(rebuilt({"model": "m", "key": "mine"}).id) == "react/mine"
    assert str(rebuilt({"model": "m"}).id) == "react/assistant"

    # a tool that is not there is named
    @tool
    def lookup() -> str:
        """Look."""
        return ""

    with refused("tool_names.1", "lookup"):
        rebuilt({"model": "m", "tool_names": ["lookup", "calculator"]}, tools=[lookup])


def test_what_an_agent_says_of_itself_makes_it_again() -> None:
    first = ReActAgent(
        "helper", model=ScriptedModel("hi", name="m"), tools=BOX.all(), system_instructions="Be brief.",
        max_iterations=7, max_parallel_tools=2, output_topic=TopicId("news")
    )  # fmt: skip
    again = rebuilt(first.spec())
    assert again.spec() == first.spec()
    # instructions that a function makes are not taken for a text
    first = ReActAgent("helper", model=ScriptedModel("hi"), system_instructions=lambda ctx: "made")
    with refused("system_instructions"):
        rebuilt(first.spec())
    assert rebuilt(first.spec(), system_instructions="Be brief.").system_instructions == "Be brief."
    # what an agent says of itself has its fallbacks and its window
    model = FallbackModel([ScriptedModel("a", name="first"), ScriptedModel("b", name="second")])
    agent = rebuilt({"model": "first", "window": {"messages": 20, "tokens": 4000}}, model=model)
    again = rebuilt(agent.spec())
    assert (again.model.name, again.model.options) == ("first", {"fallbacks": ["second"]})
    assert [type(part) for part in again.context.pipeline.strategies] == [SlidingWindowCompaction, TokenBudgetComposed]
    assert again.context.pipeline.strategies[0].max_messages == 20
    assert again.context.pipeline.strategies[1].max_tokens == 4000
    assert rebuilt(rebuilt({"model": "m", "window": 7}).spec()).context.pipeline.strategies[0].max_messages == 7
