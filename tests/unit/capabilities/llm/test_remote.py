"""Addresses of images and documents: which are passed on, and what happens to a conversation that has the others."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.capabilities.llm.errors import is_of_address
from ravi_django.capabilities.llm.loading import load_litellm
from ravi_django.capabilities.llm.parts import Form
from ravi_django.capabilities.llm.remote import is_public
from ravi_django.capabilities.llm.wire import to_wire
from ravi_django.kernel import ChatMessage, DocumentBlock, ImageBlock, ModelError, TextBlock, ToolResultBlock
from tests.support.anthropic_server import AnthropicServer
from tests.support.openai_server import OpenAIServer, Reply

CLAUDE = "anthropic/claude-sonnet-4-5"


@pytest.mark.parametrize(
    "url",
    [
        "https://files.example/a.png?x=1#y",
        "https://files.example:8443/a.png",
        "https://xn--bcher-kva.example/a",
        "https://8.8.8.8/a.png",
        "https://[2606:4700:4700::1111]/a.png",
        "HTTPS://Files.Example./a.png",
    ],
)
def test_public(url):
    assert is_public(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://files.example/a.png",
        "ftp://files.example/a.png",
        "file:///etc/passwd",
        "gs://bucket/a.png",
        "a.png",
        "",
        "https://",
        "https://localhost/a.png",
        "https://LOCALHOST./a.png",
        "https://db/a.png",
        "https://api.localhost/a.png",
        "https://metadata.google.internal/a.png",
        "https://printer.local/a.png",
        "https://127.0.0.1/a.png",
        "https://10.0.0.1/a.png",
        "https://169.254.169.254/latest",
        "https://[::1]/a.png",
        "https://[::ffff:10.0.0.1]/a.png",
        "https://[fe80::1%25eth0]/a.png",
        "https://127.1/a.png",
        "https://0177.0.0.1/a.png",
        "https://0x7f.0.0.0x1/a.png",
        "https://2130706433/a.png",
        "https://127.0.0.1./a.png",
        "https://user@127.0.0.1/a.png",
        "https://files.example\\@127.0.0.1/a.png",
        "https://files.example:no/a.png",
        "https://\N{FULLWIDTH DIGIT ONE}27.0.0.1/a.png",
        "https://127.0.0.%31/a.png",
        " https://files.example/a.png",
        "https://files.ex\tample/a.png",
    ],
)
def test_not_public(url):
    assert not is_public(url)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "any"])
@pytest.mark.parametrize("kind", [ImageBlock, DocumentBlock])
def test_the_others_are_text(kind, dialect):
    block = kind(url="http://10.0.0.1/a")
    said = [
        ChatMessage(role="user", content=[block]),
        ChatMessage(role="tool", content=[ToolResultBlock(call_id="c", content=[block])]),
    ]

    text = f"[{block.type}: http://10.0.0.1/a]"
    assert [part["content"] for part in to_wire(said, Form(dialect=dialect))] == [text, text]


@pytest.mark.parametrize(
    ("words", "status", "found"),
    [
        ("Error while downloading https://files.example/a.png.", 400, True),
        ("Unable to download the file. Please verify the URL and try again.", 400, True),
        ("Cannot fetch content from the provided URL.", 400, True),
        ("Error while downloading https://files.example/a.png.", 500, False),
        ("no such field", 400, False),
    ],
)
def test_words_for_what_could_not_be_fetched(words, status, found):
    error = Exception(words)
    error.status_code = status  # type: ignore[attr-defined]

    assert is_of_address(error) is found


def image_of(server: OpenAIServer) -> list[ChatMessage]:
    address = f"http://127.0.0.1:{server.port}/a.png"
    return [ChatMessage(role="user", content=[TextBlock(text="look"), ImageBlock(url=address)])]


class Redirecting(OpenAIServer):
    """Sends every client to `to`."""

    to = ""

    async def _answer(self, path: str, number: int, body: Any, send: Any, gone: Any) -> None:
        await send({"type": "http.response.start", "status": 302, "headers": [(b"location", self.to.encode())]})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
class TestThroughLitellm:
    async def test_an_image_on_this_machine_is_not_fetched(self, monkeypatch, model_at, events_of):
        monkeypatch.setattr(load_litellm(), "user_url_validation", False, raising=False)  # as before it had its own

        with OpenAIServer() as files, AnthropicServer() as server:
            *_, response = await events_of(model_at(server, CLAUDE), image_of(files))

        assert (response.text, files.requests) == ("Hello from the test server.", [])
        assert f"[image: http://127.0.0.1:{files.port}/a.png]" in str(server.requests[0].body["messages"])

    async def test_but_for_a_client_that_may(self, monkeypatch, model_at, events_of):
        monkeypatch.setattr(load_litellm(), "user_url_validation", False, raising=False)

        with OpenAIServer() as files, AnthropicServer() as server:
            await events_of(model_at(server, CLAUDE, private_addresses=True), image_of(files))

        assert files.requests

    async def test_a_redirect_to_a_private_address_is_not_followed(self, monkeypatch, model_at, events_of):
        """Older versions of litellm than pyproject.toml allows fetch it."""
        with OpenAIServer() as inside, AnthropicServer() as server, Redirecting() as outside:
            outside.to = f"http://127.0.0.1:{inside.port}/latest/meta-data/"
            monkeypatch.setattr(load_litellm(), "user_url_allowed_hosts", [f"127.0.0.1:{outside.port}"])  # as if public

            await events_of(model_at(server, CLAUDE, private_addresses=True), image_of(outside))

        assert (len(outside.requests), inside.requests) == (1, [])

    async def test_what_litellm_cannot_fetch_is_text(self, model_at, events_of):
        model_of: Any = model_at

        with AnthropicServer() as server:  # litellm refuses the address itself
            *_, response = await events_of(model_of(server, CLAUDE, private_addresses=True), image_of(server))

        assert response.text == "Hello from the test server."
        assert len(server.requests) == 1

    async def test_what_the_provider_cannot_fetch_is_text(self, model_at, events_of):
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

    async def test_where_no_address_was_named_it_is_not_asked_again(self, model_at, events_of):
        with OpenAIServer(Reply(status=400, text="failed to fetch")) as server, pytest.raises(ModelError):
            await events_of(model_at(server))

        assert len(server.requests) == 1
