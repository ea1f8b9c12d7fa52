"""What each family of models gets: ids, reasoning, marks for its cache, and a schema beside tools if it takes that."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory, close_clients
from ravi_django.calls.llm.knowledge import family
from ravi_django.calls.llm.litellm_model import LiteLLMModel
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import (
    ChatMessage,
    GenerationOptions,
    RetryPolicy,
    RunMeta,
    TextBlock,
    ToolUseBlock,
)
from ravi_django.kernel.content import ToolResultBlock
from ravi_django.testing import journal_of, run_until_idle
from tests.support.cases import case
from tests.support.providers import Document, Provider, answer, call_piece, check_claude, claude, marked, says
from tests.unit.capabilities.llm.conftest import ONCE, echo
from tests.unit.capabilities.llm.test_stream_kinds import TEXT, use

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
BUSY = Document({"error": {"type": "overloaded_error", "message": "later"}}, 529)
RETRY = RetryPolicy(max_attempts=2, base_s=0.0)
LONG = "chatcmpl-tool-0123456789abcdef0123456789abcdef"


class Parcel(BaseModel):
    order: int


def test_the_family_is_the_maker_of_the_model() -> None:
    litellm = load_litellm()
    for name, maker in {
        "anthropic/claude-sonnet-4-5": "anthropic",
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0": "anthropic",
        "bedrock/converse/eu.anthropic.claude-sonnet-4-5-20250929-v1:0": "anthropic",
        "vertex_ai/claude-sonnet-4-5": "anthropic",
        "bedrock/amazon.nova-pro-v1:0": "amazon",
        "bedrock/arn:aws:bedrock:us-east-1:1:application-inference-profile/claude": "",
        "gpt-4o": "openai", "azure/my-claude": "openai", "vertex_ai/gemini-2.5-pro": "gemini",
        "vertex_ai/mistral-large@2411-001": "mistral", "vertex_ai/deepseek-ai/deepseek-v3.2-maas": "deepseek",
        "gemini/gemini-3-pro-preview": "gemini", "mistral/mistral-large-latest": "mistral",
        "openrouter/anthropic/claude-sonnet-4.5": "openrouter", "no-such-model": "",
    }.items():  # fmt: skip
        assert family(litellm, name) == maker, name


def test_ids_have_the_shape_of_each_family(play: Any) -> None:
    for model, shape in {"openai/gpt-x": r"[\w-]{1,40}", "mistral/mistral-large-latest": r"[a-zA-Z0-9]{9}"}.items():
        for id in (LONG, "toolu_01", "call:1/é", "c1"):
            calls = [call_piece(at, f"{id}{at or ''}", name="echo", arguments="{}") for at in range(2)]
            with case(model, id), Provider(answer(*calls, reason="tool_calls"), says("done")) as provider:
                assert play(provider, model).output == "done"
                sent = provider.requests[1]["messages"]
            asked = [call["id"] for turn in sent for call in turn.get("tool_calls") or ()]
            assert all(re.fullmatch(shape, name) for name in asked), asked
            assert asked == [turn["tool_call_id"] for turn in sent if turn["role"] == "tool"]
            assert len(set(asked)) == 2


def test_claude_reads_its_conversation_from_the_cache(play: Any) -> None:
    @tool(risk="high")
    def pay() -> str:
        """Pay."""
        return "paid"

    answers = [claude(use(f"c{number}"), reason="tool_use") for number in range(3)]
    for name, tools, life in (("five minutes", [echo], "5m"), ("people decide", [echo, pay], "1h")):
        with case(name), Provider(*answers, claude(TEXT), checker=check_claude([])) as server:
            model = LLMFactory("anthropic/claude-sonnet-4-5", "a-key-of-the-test", api_base=server.url).build()
            agent = ReActAgent("cached", model=model, tools=tools, system_instructions="Help.", approvers="staff")
            run = submit(register(agent, replace=True), "hi")
            run_until_idle()
            run.refresh_from_db()
            assert (run.output, server.refused) == ("I look.", []), run.error
            first, *_, last = [marked(request) for request in server.requests]
        assert first == [("tools", life), ("system", life), ("text", life)]
        assert last == [("tools", life), ("system", life), ("tool_result", life), ("tool_result", life)]


def test_openai_is_told_which_requests_are_of_one_conversation(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Provider(says("ok")) as provider:
        at = {"api_base": f"{provider.url}/v1"}
        monkeypatch.setenv("OPENAI_BASE_URL", at["api_base"])
        for options, has_key in ((at, False), ({}, False), ({**at, "cache_key": True}, True)):
            model = LLMFactory("openai/gpt-4o", "a-key-of-the-test", **options).build()
            agent = register(ReActAgent("keyed", model=model), replace=True)
            first = submit(agent, "hi")
            run_until_idle()
            submit(agent, "again", session=first.session_id)
            run_until_idle()
            keys = {request.get("prompt_cache_key") for request in provider.requests[-2:]}
            assert (len(keys), None not in keys) == (1, has_key)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert LiteLLMModel("gpt-4o")._is_openais()


def test_a_turn_that_another_model_began_goes_on_without_thoughts() -> None:
    """And what the library calls a turn is no word of it."""
    model = partial(LLMFactory, "anthropic/claude-sonnet-4-5", "a-key-of-the-test", reasoning_effort="low", retry=ONCE)
    messages = [
        ChatMessage.of("user", "hi"),
        ChatMessage(role="assistant", name="ravi.stopped", content=[TextBlock(text="Half an")]),
        ChatMessage.of("user", "go on"),
        ChatMessage(role="assistant", content=[ToolUseBlock(tool_name="echo", call_id="a")]),
        ChatMessage(role="tool", content=[ToolResultBlock(call_id="a", content=[TextBlock(text="x")])]),
    ]
    words = "messages.3.content.0: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    with Provider(claude(TEXT), checker=lambda body: words if "thinking" in body else None) as server:
        response = asyncio.run(answered(model(api_base=server.url).build(), messages))
        assert (response.text, len(server.requests)) == ("I look.", 2)
        assert server.requests[1]["messages"][1]["content"] == [{"type": "text", "text": "Half an"}]


async def answered(model: Any, messages: list[ChatMessage]) -> Any:
    *_, response = [event async for event in model.stream(messages, GenerationOptions(), RunMeta(run_id="r"))]
    await close_clients()
    return response


def test_a_model_gets_no_schema_beside_tools_that_would_hide_them(play: Any) -> None:
    def part(**fields: Any) -> Document:
        return Document({"candidates": [{"content": {"role": "model", "parts": [fields]}, "finishReason": "STOP"}]})

    google = part(functionCall={"name": "final_result", "args": {"order": 3}})
    result = claude({"type": "tool_use", "id": "r", "name": "final_result", "input": {"order": 3}}, reason="tool_use")
    for name, says_it in {"gemini/gemini-2.5-flash": google, "anthropic/claude-sonnet-4-20250514": result}.items():
        with case(name), Provider(says_it) as server:
            assert play(server, name, result_model=Parcel).output == '{"order":3}'
            (request,) = server.requests
        assert "response" not in json.dumps(request.get("generationConfig", {})).lower()
        assert "tool_choice" not in request


def test_a_refused_schema_is_asked_for_by_a_tool(play: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "REPLAY": "strict"}
    result = answer(call_piece(0, "r", name="final_result", arguments='{"order": 3}'), reason="tool_calls")
    used = claude({"type": "tool_use", "id": "r", "name": "final_result", "input": {"order": 3}}, reason="tool_use")
    for name, field, words, says_it in (
        ("mistral/mistral-large-latest", "response_format", "json mode cannot be combined with tool calling", result),
        ("deepseek/deepseek-chat", "response_format", "This response_format type is unavailable now", result),
        ("anthropic/claude-sonnet-4-5", "output_format", "output_format.schema: not supported", used),
    ):
        with (
            case(name),
            Provider(BUSY, BUSY, says_it, checker=lambda body, a=field, b=words: b if a in body else None) as server,
        ):
            first, second = (play(server, name, retry=RETRY, result_model=Parcel) for _ in range(2))
            assert [run.output for run in (first, second)] == ['{"order":3}'] * 2, (first.error, second.error)
            assert (len(server.requests), len(server.refused)) == (4, 1)
        calls = [entry for entry in journal_of(first) if entry.kind == "llm.call"]
        assert [entry.request["result_by"] for entry in calls] == ["schema", "tool"]
