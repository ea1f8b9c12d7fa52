"""Any history that an agent's loop can write is accepted by each dialect of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ravi_django.calls.llm import LLMFactory, close_clients
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import ChatMessage, GenerationOptions, RunMeta
from ravi_django.kernel.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.support.providers import Checker, Provider, check_claude, claude, says
from tests.support.providers.chat import check_chat
from tests.support.providers.gemini import call, check_gemini, gemini
from tests.support.providers.mistral import check_mistral
from tests.unit.capabilities.llm.test_gemini import PNG, SIGNATURE

pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
TEXT = TextBlock(text="words")
FILES: list[ContentBlock] = [
    ImageBlock(data=PNG),
    DocumentBlock(data="AA==", mime_type="application/pdf", name="a.pdf"),
]
ORIGINS = [
    None,
    {"family": "gemini"},  # with an id for each call
    {"family": "mistral", "arguments": "{ }"},
    {"family": "openai", "extra": {"extra_content": {"google": {}}}, "server": "another"},
]
TOOLS = ["echo", "draw it"]
OWN = [call(name, SIGNATURE, own=True) for name in ("echo", "draw_it")]
THOUGHTS = [
    ThinkingBlock(text="hm"),
    ThinkingBlock(text="hm", signature="s", origin={"family": "gemini"}),
    ThinkingBlock(text="hm", signature="s", origin={"family": "openai", "id": "rs_1", "summary": []}),
]


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[ChatMessage]:
    """What the loop writes for one step: words of a person, or an answer of an agent with the results of its calls."""
    name = draw(st.sampled_from([None, "ada", "no name"]))
    if draw(st.booleans()):
        return [
            ChatMessage(role="user", name=name, content=[TEXT, *draw(st.lists(st.sampled_from(FILES), max_size=2))])
        ]
    content: list[ContentBlock] = draw(st.lists(st.sampled_from([TEXT, *THOUGHTS]), max_size=3))
    for at in range(draw(st.integers(0, 3))):
        tool, id, origin = (
            draw(st.sampled_from(TOOLS)),
            draw(st.sampled_from(["", "toolu_"])),
            draw(st.sampled_from(ORIGINS)),
        )
        arguments: dict[str, Any] = {}
        if origin and origin["family"] == "gemini":
            arguments, origin = {"own": True}, origin | {"id": f"call_{number}_{at}__thought__{SIGNATURE}"}
        use = ToolUseBlock(tool_name=tool, call_id=f"{id}{number}_{at}", arguments=arguments, origin=origin)
        content.insert(draw(st.integers(0, len(content))), use)
    answer = ChatMessage(role="assistant", name=name, content=content)
    results = [
        ToolResultBlock(call_id=use.call_id, content=draw(st.sampled_from([[], [TEXT], FILES[:1]])))
        for use in answer.tool_calls
    ]
    return [answer, *([ChatMessage(role="tool", content=results)] if results else [])]


@st.composite
def histories(draw: st.DrawFn) -> list[ChatMessage]:
    messages = [ChatMessage.of("system", "Help.")] if draw(st.booleans()) else []
    messages.append(ChatMessage.of("user", "hi"))
    for number in range(draw(st.integers(0, 5))):
        messages += draw(steps(number))
    if messages[-1].role == "assistant":
        messages.append(ChatMessage.of("user", "go on"))
    return messages


DIALECTS: dict[str, tuple[Any, Checker]] = {
    "gemini/gemini-2.5-flash": (gemini({"text": "ok"}), check_gemini(OWN, model=2)),
    "gemini/gemini-3-pro-preview": (gemini({"text": "ok"}), check_gemini(OWN)),
    "mistral/mistral-large-latest": (says("ok"), check_mistral),
    "openai/gpt-4o": (says("ok"), check_chat()),
    "deepseek/deepseek-reasoner": (says("ok"), check_chat(thinks=True, images=False)),
    "anthropic/claude-sonnet-4-5": (claude({"type": "text", "text": "ok"}), check_claude([])),
}


async def refusals(model: Any, messages: Sequence[ChatMessage]) -> None:
    async for _ in model.stream(messages, GenerationOptions(), RunMeta(run_id="r1")):
        pass
    await close_clients()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_history_is_accepted(name: str) -> None:
    answer, checker = DIALECTS[name]
    load_litellm()
    with Provider(answer, checker=checker) as server:
        base = server.url if name.startswith(("anthropic", "gemini")) else f"{server.url}/v1"
        model = LLMFactory(name, "a-key-of-the-test", api_base=base).build()

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(histories())
        def accepted(messages: list[ChatMessage]) -> None:
            server.refused.clear()
            try:
                asyncio.run(refusals(model, messages))
            finally:
                assert server.refused == []

        accepted()
