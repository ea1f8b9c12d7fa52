"""A spec is read strictly: what is wrong is named by its place, with the mend."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.agents import AgentSpec, validate_spec
from ravi_django.kernel import InvalidInputError

TOOLS = ["calculator", "current_time"]
AGENTS = ["react/writer", "react/checker"]
WHOLE: dict[str, Any] = {
    "model": "gpt-4o-mini",
    "fallbacks": ["claude-haiku"],
    "system_instructions": "Hello {{ customer }}.",
    "variables": {"customer": {"description": "whom", "default": "you", "required": False}},
    "tool_names": ["calculator"],
    "sub_agents": ["react/writer", {"agent": "react/checker", "description": "Checks.", "timeout": 5}],
    "max_iterations": 4,
    "budget": {"max_tokens": 1000, "deadline_s": 60},
    "retention": "run",
    "approval_required_risk": "critical",
    "approvers": {"critical": "group:directors", "*": "staff"},
    "starter_prompts": ["What is 2 + 2?"],
    "welcome": "Good day.",
    "initial_tool_choice": "handoff_writer",
    "options": {"temperature": 0.2, "max_tokens": 50, "reasoning_effort": "low", "stop": ["END"]},
    "window": {"messages": 20, "tokens": 4000},
    "result_schema": {"type": "object", "properties": {"sum": {"type": "number"}}},
    "name": "Adder",
    "description": "Adds.",
}


def test_a_whole_spec_is_read_and_written_back() -> None:
    spec = validate_spec(WHOLE, TOOLS, AGENTS)

    again = validate_spec(spec.to_json(), TOOLS, AGENTS)

    assert again == spec
    assert spec.to_json()["sub_agents"] == WHOLE["sub_agents"]
    assert (spec.max_iterations, spec.retention, spec.window.tokens) == (4, "run", 4000)  # type: ignore[union-attr]


def test_a_row_keeps_what_is_not_a_default() -> None:
    assert validate_spec({"model": "m", "window": 20}).to_json() == {"model": "m", "window": {"messages": 20}}
    plain = {"agent": "react/a", "timeout": 120, "description": ""}
    assert validate_spec({"model": "m", "sub_agents": [plain]}).to_json()["sub_agents"] == ["react/a"]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"model": None}, "model", "string"),
        ({"model": " "}, "model", "pattern"),
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
        ({"window": 0}, "window.messages", "1"),
        ({"window": {"token": 1}}, "window.token", "messages, tokens"),
        ({"max_iterations": 0}, "max_iterations", "1"),
        ({"retention": "forever"}, "retention", "'permanent'"),
        ({"approval_required_risk": "low"}, "approval_required_risk", "'critical'"),
        ({"initial_tool_choice": "search"}, "initial_tool_choice", "auto, none, required, calculator"),
        ({"result_schema": {"type": "objekt"}}, "result_schema", "JSON schema"),
        ({"welcome": "a\0b"}, "welcome", "NUL"),
        ({"starter_prompts": ["a", "b\0"]}, "starter_prompts.1", "NUL"),
        ({"variables": {"a\0": {}}}, "variables", "NUL"),
        ({"name": "\ud800"}, "name", "surrogate"),
        ({"options": {"extra": {"api_key": "sk-1"}}}, "options.extra.api_key", "environment"),
        ({"variables": {"password": {"default": "1234"}}}, "variables.password", "environment"),
    ],
)
def test_a_fault_is_named_by_its_place_with_the_mend(change: dict[str, Any], field: str, words: str) -> None:
    known_agents = [*AGENTS, "team/writer"] if "team/writer" in str(change) else AGENTS

    with pytest.raises(InvalidInputError) as caught:
        validate_spec({"model": "m", "tool_names": ["calculator"], **change}, TOOLS, known_agents)

    assert caught.value.field == field
    assert words in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_a_tool_must_be_there_to_be_required() -> None:
    with pytest.raises(InvalidInputError, match="none of auto, none"):
        validate_spec({"model": "m", "initial_tool_choice": "required"})


@pytest.mark.parametrize("spec", ["gpt", None, ["gpt"]])
def test_a_spec_is_an_object(spec: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_spec(spec)

    assert caught.value.field == "spec"


def test_what_is_not_known_is_not_checked() -> None:
    spec = validate_spec({"model": "m", "tool_names": ["anything"], "sub_agents": ["any/body"]})

    assert isinstance(spec, AgentSpec)
    assert validate_spec(spec) is spec


@pytest.mark.parametrize(
    "name",
    [
        "base_url",
        "api_base",
        "custom_llm_provider",
        "headers",
        "extra_headers",
        "success_callback",
        "fallbacks",
        "model_list",
        "use_litellm_proxy",
        "api_version",
        "mock_response",
        "metadata",
        "vertex_location",
        "model",
    ],
)
def test_a_spec_has_no_say_in_where_the_keys_of_the_site_go(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_spec({"model": "m", "options": {"extra": {"seed": 7, name: "https://evil.example"}}})

    assert caught.value.field == f"options.extra.{name}"
    assert "top_k" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": "huggingface/https://evil.example"}, "model"),
        ({"model": "openai//evil.example/v1"}, "model"),
        ({"model": "gemini/../../x?key="}, "model"),
        ({"model": "m", "fallbacks": ["n", "http:\\\\evil.example"]}, "fallbacks.1"),
    ],
)
def test_a_models_name_is_no_address(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_spec(spec)

    assert caught.value.field == field


def test_names_that_providers_have_are_taken() -> None:
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
    ("field", "place"),
    [("options", "options.extra"), ("result_schema", "result_schema"), ("variables", "variables.a")],
)
def test_what_is_nested_without_end_is_refused(field: str, place: str) -> None:
    deep: Any = {}
    for _ in range(900):
        deep = {"properties": deep}
    value = {"options": {"extra": deep}, "result_schema": deep, "variables": {"a": {"default": deep}}}[field]

    with pytest.raises(InvalidInputError, match="nested more than") as caught:
        validate_spec({"model": "m", field: value})

    assert caught.value.field == place
