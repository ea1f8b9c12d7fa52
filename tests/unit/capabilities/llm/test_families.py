"""What each family of models gets: ids, reasoning, marks for its cache, and a schema beside tools if it takes that."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.capabilities.llm import LLMFactory
from ravi_django.capabilities.llm.knowledge import family
from ravi_django.capabilities.llm.litellm_model import LiteLLMModel
from ravi_django.capabilities.llm.loading import load_litellm
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import Provider, answer, call_piece, check_claude, claude, marked, says
from tests.unit.capabilities.llm.conftest import echo
from tests.unit.capabilities.llm.test_stream_kinds import TEXT, use

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
LONG = "chatcmpl-tool-0123456789abcdef0123456789abcdef"


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
