"""Images, documents and recordings: what a provider gets of them, and which addresses are passed on."""

from base64 import b64encode
from importlib import import_module
from typing import Any

import pytest

from ravi_django.calls.llm import LLMFactory, knowledge
from ravi_django.calls.llm.errors import is_fetch_error
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.calls.llm.wire import Form, is_public, to_wire
from ravi_django.kernel import (
    AudioBlock,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ModelError,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from tests.support.anthropic_server import AnthropicServer
from tests.support.cases import case
from tests.support.openai_server import OpenAIServer, Reply

pytestmark = [
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


async def test_openai(model_at, events_of):
    for block, part in [
        (ImageBlock(url=f"{AT}.png"), {"type": "image_url", "image_url": {"url": f"{AT}.png"}}),
        (ImageBlock(data=PNG, mime_type="image/png", detail="low"),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}}),
        (DocumentBlock(data=PDF, mime_type="application/pdf"),
            {"type": "file",
            "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "document.pdf"}}),
        (AudioBlock(data=WAV, mime_type="audio/wav"),
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}),
    ]:  # fmt: skip
        assert await sent(OpenAIServer(), model_at, events_of, "openai/gpt-4o", block) == [part], block
    # what openai has no part for is text
    for block, text in [
        (DocumentBlock(url=f"{AT}.pdf", mime_type="application/pdf"), f"[document: {AT}.pdf]"),
        (AudioBlock(url=f"{AT}.mp3"), f"[audio: {AT}.mp3]"),
        (DocumentBlock(data=b64encode(b"a,b").decode(), mime_type="text/csv"), "a,b"),
    ]:
        assert await sent(OpenAIServer(), model_at, events_of, "openai/gpt-4o", block) == f"look\n{text}", block


@pytest.mark.parametrize(("block", "part"), [
    (ImageBlock(url=f"{AT}.png"), {"type": "image", "source": {"type": "url", "url": f"{AT}.png"}}),
    (ImageBlock(data=PNG, mime_type="image/png"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}),
    (DocumentBlock(data=PDF, mime_type="application/pdf", name="a.pdf"),
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}),
    (DocumentBlock(url=f"{AT}.pdf", mime_type="application/pdf"),
        {"type": "document", "source": {"type": "url", "url": f"{AT}.pdf"}}),
    (AudioBlock(data=WAV, mime_type="audio/wav", transcript="spoken"), {"type": "text", "text": "spoken"}),
])  # fmt: skip
async def test_anthropic(model_at, events_of, block, part):
    found = await sent(AnthropicServer(), model_at, events_of, "anthropic/claude-sonnet-4-5", block)
    if part["type"] == "text":  # beside other text there is nothing but text
        found = [{"type": "text", "text": found[0]["text"].removeprefix("look\n")}]
    assert [{name: value for name, value in one.items() if name != "cache_control"} for one in found] == [part]


def test_a_video_is_for_models_that_accept_one():
    video = VideoBlock(data=WAV, mime_type="video/webm", name="a.webm")
    for name, part in [
        ("gemini/gemini-2.5-pro", {"type": "file", "file": {"file_data": f"data:video/webm;base64,{WAV}"}}),
        ("openai/gpt-4o", {"type": "text", "text": "[video: a.webm]"}),
    ]:
        form = Form(video=knowledge.accepts_video(load_litellm(), name))
        ((wire),) = to_wire([ChatMessage(role="user", content=[TextBlock(text="look"), video])], form)
        assert part in wire["content"] if part["type"] == "file" else wire["content"] == f"look\n{part['text']}", name


async def test_an_uploaded_file_counts_before_it_is_read():
    named = {"file": "x", "name": "a", "size": 40_000}
    for block, least in [(DocumentBlock(mime_type="text/plain", **named), 10_000), (ImageBlock(**named), 1_500)]:
        said = ChatMessage(role="user", content=[block])
        assert least < await knowledge.tokens_of(load_litellm(), "gpt-4o", [said]) < least + 50, block


def looked(*found: ContentBlock) -> list[ChatMessage]:
    return [
        ChatMessage.of("user", "look"),
        ChatMessage(role="assistant", content=[ToolUseBlock(tool_name="look", arguments={}, call_id="c1")]),
        ChatMessage(role="tool", content=[ToolResultBlock(call_id="c1", content=list(found))]),
    ]


CHART = ImageBlock(data=PNG, mime_type="image/png", alt="a chart")
PAPER = DocumentBlock(data=PDF, mime_type="application/pdf", name="a.pdf")


async def test_what_a_tool_returned_is_shown(model_at, events_of):
    with OpenAIServer() as server:
        await events_of(model_at(server), looked(CHART, PAPER))
    *_, tool, user = server.requests[0].body["messages"]
    assert (tool["role"], tool["content"]) == ("tool", "[image: a chart]\n[document: a.pdf]")
    assert (user["role"], [part["type"] for part in user["content"]]) == ("user", ["text", "image_url", "file"])
    assert user["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    with AnthropicServer() as server:
        await events_of(model_at(server, "anthropic/claude-sonnet-4-5"), looked(CHART, PAPER))
    ((result,),) = [message["content"] for message in server.requests[0].body["messages"][2:]]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", "c1")
    assert [part["type"] for part in result["content"]] == ["text", "image", "document"]
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    # a model that takes no images is not sent those of tools
    with OpenAIServer() as server:
        await events_of(model_at(server, "openai/gpt-3.5-turbo"), looked(CHART))
    assert server.requests[0].body["messages"][-1]["content"] == "[image: a chart]"


CLAUDE = "anthropic/claude-sonnet-4-5"


def test_which_addresses_are_public():
    for url in (
        "https://files.example/a.png?x=1#y https://files.example:8443/a.png "
        "https://xn--bcher-kva.example/a https://8.8.8.8/a.png https://[2606:4700:4700::1111]/a.png "
        "HTTPS://Files.Example./a.png"
    ).split():
        assert is_public(url), url
    # not public
    for url in (
        *(
            "http://files.example/a.png ftp://files.example/a.png file:///etc/passwd gs://bucket/a.png a.png "
            "https:// https://localhost/a.png https://LOCALHOST./a.png https://db/a.png "
            "https://api.localhost/a.png https://metadata.google.internal/a.png https://printer.local/a.png "
            "https://127.0.0.1/a.png https://10.0.0.1/a.png https://169.254.169.254/latest "
            "https://[::1]/a.png https://[::ffff:10.0.0.1]/a.png https://[fe80::1%25eth0]/a.png "
            "https://127.1/a.png https://0177.0.0.1/a.png https://0x7f.0.0.0x1/a.png https://2130706433/a.png "
            "https://127.0.0.1./a.png https://user@127.0.0.1/a.png https://files.example:no/a.png "
            "https://127.0.0.%31/a.png"
        ).split(),
        "",
        "https://files.example\\@127.0.0.1/a.png",
        "https://\uff1127.0.0.1/a.png",
        " https://files.example/a.png",
        "https://files.ex\tample/a.png",
    ):
        assert not is_public(url), url


def test_what_is_not_public_is_text():
    # the others are text
    for dialect in ["openai", "anthropic", "any"]:
        for kind in [ImageBlock, DocumentBlock]:
            with case(dialect, kind):
                block = kind(url="http://10.0.0.1/a")
                said = [
                    ChatMessage(role="user", content=[block]),
                    ChatMessage(role="tool", content=[ToolResultBlock(call_id="c", content=[block])]),
                ]
                text = f"[{block.type}: http://10.0.0.1/a]"
                assert [part["content"] for part in to_wire(said, Form(family=dialect))] == [text, text]
    # words for what could not be fetched
    for words, status, found in [
        ("Error while downloading https://files.example/a.png.", 400, True),
        ("Unable to download the file. Please verify the URL and try again.", 400, True),
        ("Cannot fetch content from the provided URL.", 400, True),
        ("Error while downloading https://files.example/a.png.", 500, False),
        ("no such field", 400, False),
    ]:
        with case(words, status, found):
            error = Exception(words)
            error.status_code = status
            assert is_fetch_error(error) is found


async def test_where_litellm_downloads_images_it_takes_few_bytes() -> None:
    for name in (
        "gemini/x",
        "vertex_ai/claude-x",
        "bedrock/anthropic.claude-x",
        "ollama/x",
        "nobody/x",
        "mistral/x",
        "groq/x",
    ):
        assert await LLMFactory("gpt-4o", fallbacks=[name]).build().fetches_addresses(), name
    for name in ("gpt-4o", "azure/x", "anthropic/claude-x"):
        assert not await LLMFactory(name).build().fetches_addresses(), name
    for module in ("token_counter", "prompt_templates.image_handling"):  # also if a test imported litellm itself
        assert import_module(f"litellm.litellm_core_utils.{module}").MAX_IMAGE_URL_DOWNLOAD_SIZE_MB == 5


def image_of(server: OpenAIServer) -> list[ChatMessage]:
    address = f"http://127.0.0.1:{server.port}/a.png"
    return [ChatMessage(role="user", content=[TextBlock(text="look"), ImageBlock(url=address)])]


class Redirecting(OpenAIServer):
    """Sends every client to `to`."""

    to = ""

    async def _answer(self, path: str, number: int, body: Any, send: Any, gone: Any) -> None:
        await send({"type": "http.response.start", "status": 302, "headers": [(b"location", self.to.encode())]})
        await send({"type": "http.response.body", "body": b""})


async def test_an_image_on_this_machine_is_not_fetched(monkeypatch, model_at, events_of):
    monkeypatch.setattr(load_litellm(), "user_url_validation", False, raising=False)  # as before it had its own
    with OpenAIServer() as files, AnthropicServer() as server:
        *_, response = await events_of(model_at(server, CLAUDE), image_of(files))
    assert (response.text, files.requests) == ("Hello from the test server.", [])
    assert f"[image: http://127.0.0.1:{files.port}/a.png]" in str(server.requests[0].body["messages"])
    # but for a client that may
    monkeypatch.setattr(load_litellm(), "user_url_validation", False, raising=False)
    with OpenAIServer() as files, AnthropicServer() as server:
        await events_of(model_at(server, CLAUDE, private_addresses=True), image_of(files))
    assert files.requests


async def test_a_redirect_to_a_private_address_is_not_followed(monkeypatch, model_at, events_of):
    """Older versions of litellm than pyproject.toml allows fetch it."""
    with OpenAIServer() as inside, AnthropicServer() as server, Redirecting() as outside:
        outside.to = f"http://127.0.0.1:{inside.port}/latest/meta-data/"
        monkeypatch.setattr(load_litellm(), "user_url_allowed_hosts", [f"127.0.0.1:{outside.port}"])  # as if public
        await events_of(model_at(server, CLAUDE, private_addresses=True), image_of(outside))
    assert (len(outside.requests), inside.requests) == (1, [])


async def test_what_cannot_be_fetched_is_text(model_at, events_of):
    # what litellm cannot fetch is text
    model_of: Any = model_at
    with AnthropicServer() as server:  # litellm refuses the address itself
        *_, response = await events_of(model_of(server, CLAUDE, private_addresses=True), image_of(server))
    assert (response.text, len(server.requests)) == ("Hello from the test server.", 1)

    # what the provider cannot fetch is text
    def script(body: Any) -> Reply:
        if "image_url" in str(body["messages"]):
            words = "Error while downloading https://files.example/a.png."
            return Reply(status=400, text=words, error_code="invalid_image_url")
        return Reply(text="I see none.")

    said = [ChatMessage(role="user", content=[ImageBlock(url="https://files.example/a.png")])]
    with OpenAIServer(script) as server:
        *_, response = await events_of(model_at(server), said)
    assert response.text == "I see none."
    assert server.requests[1].body["messages"][0]["content"] == "[image: https://files.example/a.png]"
    # where no address was named it is not asked again
    with OpenAIServer(Reply(status=400, text="failed to fetch")) as server, pytest.raises(ModelError):
        await events_of(model_at(server))
    assert len(server.requests) == 1
