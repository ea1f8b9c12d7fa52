"""Images, documents and recordings: what a provider gets of them, through the real litellm."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from ravi_django.kernel import (
    AudioBlock,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.support.anthropic_server import AnthropicServer
from tests.support.openai_server import OpenAIServer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.usefixtures("clients"),
    # litellm's own stream, which Anthropic's protocol needs, warns of its own pydantic types
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),
]

# The smallest PNG: one transparent pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PDF = b64encode(b"%PDF-1.4\n%%EOF").decode()
WAV = b64encode(b"RIFF....WAVE").decode()
AT = "https://files.example/a"


async def sent(server: OpenAIServer, model_at: Any, events_of: Any, name: str, block: ContentBlock) -> Any:
    """The part that stands for the block in what the provider was sent."""
    said = ChatMessage(role="user", content=[TextBlock(text="look"), block])
    with server:
        await events_of(model_at(server, name), [said])
    (message,) = server.requests[0].body["messages"]
    content = message["content"]
    return content if isinstance(content, str) else [part for part in content if part.get("text") != "look"]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (ImageBlock(url=f"{AT}.png"), {"type": "image_url", "image_url": {"url": f"{AT}.png"}}),
        (
            ImageBlock(data=PNG, mime_type="image/png", detail="low"),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
        ),
        (
            DocumentBlock(data=PDF, mime_type="application/pdf"),
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "document.pdf"}},
        ),
        (
            AudioBlock(data=WAV, mime_type="audio/wav"),
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
        ),
    ],
)
async def test_openai(model_at, events_of, block, part):
    assert await sent(OpenAIServer(), model_at, events_of, "openai/gpt-4o", block) == [part]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (DocumentBlock(url=f"{AT}.pdf", mime_type="application/pdf"), f"[document: {AT}.pdf]"),
        (AudioBlock(url=f"{AT}.mp3"), f"[audio: {AT}.mp3]"),
        (DocumentBlock(data=b64encode(b"a,b").decode(), mime_type="text/csv"), "a,b"),
    ],
)
async def test_what_openai_has_no_part_for_is_text(model_at, events_of, block, text):
    assert await sent(OpenAIServer(), model_at, events_of, "openai/gpt-4o", block) == f"look\n{text}"


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (ImageBlock(url=f"{AT}.png"), {"type": "image", "source": {"type": "url", "url": f"{AT}.png"}}),
        (
            ImageBlock(data=PNG, mime_type="image/png"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
        (
            DocumentBlock(data=PDF, mime_type="application/pdf", name="a.pdf"),
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
        ),
        (
            DocumentBlock(url=f"{AT}.pdf", mime_type="application/pdf"),
            {"type": "document", "source": {"type": "url", "url": f"{AT}.pdf"}},
        ),
        (AudioBlock(data=WAV, mime_type="audio/wav", transcript="spoken"), {"type": "text", "text": "spoken"}),
    ],
)
async def test_anthropic(model_at, events_of, block, part):
    found = await sent(AnthropicServer(), model_at, events_of, "anthropic/claude-sonnet-4-5", block)

    if part["type"] == "text":  # beside other text there is nothing but text
        found = [{"type": "text", "text": found[0]["text"].removeprefix("look\n")}]
    assert found == [part]


def looked(*found: ContentBlock) -> list[ChatMessage]:
    return [
        ChatMessage.of("user", "look"),
        ChatMessage(role="assistant", content=[ToolUseBlock(tool_name="look", arguments={}, call_id="c1")]),
        ChatMessage(role="tool", content=[ToolResultBlock(call_id="c1", content=list(found))]),
    ]


CHART = ImageBlock(data=PNG, mime_type="image/png", alt="a chart")
PAPER = DocumentBlock(data=PDF, mime_type="application/pdf", name="a.pdf")


async def test_what_a_tool_returned_is_shown_to_openai(model_at, events_of):
    with OpenAIServer() as server:
        await events_of(model_at(server), looked(CHART, PAPER))

    *_, tool, user = server.requests[0].body["messages"]
    assert (tool["role"], tool["content"]) == ("tool", "[image: a chart]\n[document: a.pdf]")
    assert (user["role"], [part["type"] for part in user["content"]]) == ("user", ["text", "image_url", "file"])
    assert user["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"


async def test_what_a_tool_returned_is_shown_to_anthropic(model_at, events_of):
    with AnthropicServer() as server:
        await events_of(model_at(server, "anthropic/claude-sonnet-4-5"), looked(CHART, PAPER))

    ((result,),) = [message["content"] for message in server.requests[0].body["messages"][2:]]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", "c1")
    assert [part["type"] for part in result["content"]] == ["text", "image", "document"]
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


async def test_a_model_that_takes_no_images_is_not_sent_those_of_tools(model_at, events_of):
    with OpenAIServer() as server:
        await events_of(model_at(server, "openai/gpt-3.5-turbo"), looked(CHART))

    assert server.requests[0].body["messages"][-1]["content"] == "[image: a chart]"
