"""What is known of a model without asking anybody over the network."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ravi_django.capabilities.llm import LiteLLMModel, knowledge
from ravi_django.capabilities.llm.loading import load_litellm
from ravi_django.kernel import ChatMessage, DocumentBlock, ImageBlock, TextBlock, ToolUseBlock
from tests.support import forks

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("name", "settings", "window"),
    [
        ("gpt-4o", {}, 128_000),
        ("openai/gpt-4o", {}, 128_000),
        ("openai/ours", {}, None),
        ("openai/ours", {"context_window": 4096}, 4096),
        ("gpt-4o", {"context_window": 4096}, 4096),
    ],
)
async def test_the_window(name, settings, window):
    assert await LiteLLMModel(name, **settings).context_window() == window


@pytest.mark.parametrize(
    ("name", "supported"),
    [("gpt-4o", True), ("openai/ours", False), ("ollama/llama3", False), ("no-such-model", False)],
)
async def test_schemas(name, supported):
    assert await LiteLLMModel(name).supports_schema() is supported


async def test_tokens_are_the_tokenizers():
    litellm = load_litellm()
    messages = [ChatMessage.of("system", "Be brief."), ChatMessage.of("user", "How many tokens is this?")]

    counted = await LiteLLMModel("gpt-4o").count_tokens(messages)

    wire = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many tokens is this?"}]
    assert counted == litellm.token_counter(model="gpt-4o", messages=wire)


async def test_a_message_is_counted_once(monkeypatch):
    model = LiteLLMModel("gpt-4o")
    litellm = load_litellm()
    counter, calls = litellm.token_counter, []
    monkeypatch.setattr(litellm, "token_counter", lambda **given: calls.append(given) or counter(**given))
    messages = [ChatMessage.of("user", f"message {index}") for index in range(5)]

    first = await model.count_tokens(messages)
    again = await model.count_tokens([*messages, ChatMessage.of("user", "one more")])

    assert len(calls) == 6
    assert again > first


async def test_what_is_no_text_counts_too():
    model = LiteLLMModel("gpt-4o")
    text = ChatMessage.of("user", "look")
    image = ChatMessage(role="user", content=[TextBlock(text="look"), ImageBlock(url="https://files.example/a.png")])
    document = ChatMessage(role="user", content=[TextBlock(text="look"), DocumentBlock(data="QUJD", name="a.pdf")])
    call = ChatMessage(role="assistant", content=[ToolUseBlock(tool_name="add", arguments={"a": 1}, call_id="c1")])

    plain, with_image, with_document, with_call = [
        await model.count_tokens([one]) for one in (text, image, document, call)
    ]

    assert with_image - plain > 50
    assert with_document - plain >= knowledge.FILE_TOKENS
    assert with_call > knowledge.REPLY_TOKENS + 5


async def test_much_is_counted_off_the_loop(monkeypatch):
    litellm = load_litellm()
    threads = set()
    monkeypatch.setattr(litellm, "token_counter", lambda **given: threads.add(threading.current_thread()) or 1)
    model = LiteLLMModel("gpt-4o")

    await model.count_tokens([ChatMessage.of("user", "short")])
    assert threads == {threading.main_thread()}
    await model.count_tokens([ChatMessage.of("user", "word " * 10_000)])

    assert len(threads) == 2


async def test_none_of_it_touches_the_network():
    code = """
import asyncio, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("network")
from ravi_django.capabilities.llm import LiteLLMModel
from ravi_django.kernel import ChatMessage, ImageBlock
from ravi_django.capabilities.llm import warm
image = ImageBlock(url="https://files.example/a.png", detail="high")
messages = [ChatMessage.of("user", "hello " * 20), ChatMessage(role="user", content=[image])]
async def main():
    for name in sys.argv[1:]:
        model = LiteLLMModel(name)
        print(name, await model.context_window(), await model.count_tokens(messages) > 5, await model.supports_schema())
loop = asyncio.new_event_loop()  # has its socket pair
socket.socket.connect = refuse; socket.getaddrinfo = refuse; socket.create_connection = refuse
loop.run_until_complete(main())
"""
    names = [
        "gpt-4o",
        "anthropic/claude-sonnet-4-5",
        "ollama/llama3",
        "huggingface/x/y",
        "openai/ours",
        "cohere/command-r",
    ]
    done = await asyncio.to_thread(forks.run, ["-c", code, *names], capture_output=True, text=True, timeout=90)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(names)
    assert "False" not in {line.split()[2] for line in done.stdout.splitlines()}
