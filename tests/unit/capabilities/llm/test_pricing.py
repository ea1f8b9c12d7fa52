"""What a call cost, and what is known of a model without asking over the network."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ravi_django.calls.llm import LiteLLMModel, knowledge
from ravi_django.calls.llm.collector import ResponseCollector
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.calls.llm.pricing import cost_by, site_prices
from ravi_django.kernel import ChatMessage, DocumentBlock, ImageBlock, TextBlock, ToolUseBlock, Usage
from tests.support import forks, world
from tests.support.anthropic_server import AnthropicServer
from tests.support.cases import case
from tests.support.openai_server import OpenAIServer, Reply

OURS = {"input_cost_per_token": 1.0, "output_cost_per_token": 10.0}
CLAUDE = "claude-sonnet-4-5"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The site's price table."""
    found: dict[str, Any] = {}
    world.patch(monkeypatch, "pricing_table", lambda: found)
    return found


def test_the_sites_table(table):
    # an exact name goes before a pattern
    table |= {"gpt-*": {"a": 1}, "gpt-4o": {"b": 2}, "*": {"c": 3}}
    assert site_prices("gpt-4o") == {"b": 2}
    assert site_prices("gpt-4o-mini") == {"a": 1}, "the first pattern that fits"
    assert site_prices("claude") == {"c": 3}
    # a model is known by any of its names
    table.clear()
    table["gpt-4o-2024-08-06"] = OURS
    assert site_prices("azure/ours", "gpt-4o-2024-08-06") == OURS

    table.clear()
    table["gpt-*"] = OURS
    assert site_prices("claude") is None


def test_cost_by_prices():
    # cached and written input have prices of their own
    prices = {**OURS, "cache_read_input_token_cost": 0.1, "cache_creation_input_token_cost": 1.25}
    usage = Usage(input_tokens=100, cached_tokens=60, output_tokens=2)
    assert cost_by(prices, usage, cache_writes=30) == pytest.approx(10 * 1 + 60 * 0.1 + 30 * 1.25 + 2 * 10)
    # they cost as input when no price is given
    usage = Usage(input_tokens=100, cached_tokens=60, output_tokens=0)
    assert cost_by(OURS, usage, cache_writes=30) == 100
    # a missing price is unknown not nothing
    for missing in OURS:
        with case(missing):
            prices = {name: price for name, price in OURS.items() if name != missing}
            assert cost_by(prices, Usage(input_tokens=1, output_tokens=1)) is None

    assert cost_by({}, Usage()) == 0


async def cost_of(model_at, events_of, server, name, **settings):
    with server:
        return (await events_of(model_at(server, name, **settings)))[-1]


def openai() -> OpenAIServer:
    details = {"cached_tokens": 40}
    usage = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102, "prompt_tokens_details": details}
    return OpenAIServer(Reply(text="ok", usage=usage))


def anthropic() -> AnthropicServer:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 2}
    return AnthropicServer(Reply(text="ok", usage=usage))


@pytest.mark.usefixtures("clients")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
async def test_whose_prices_count(model_at, events_of, table):
    # the sites table goes before litellms list
    table["openai/gpt-4*"] = {**OURS, "cache_read_input_token_cost": 0.5}
    response = await cost_of(model_at, events_of, openai(), "openai/gpt-4o")
    assert response.usage.cached_tokens == 40
    assert response.cost == pytest.approx(60 + 40 * 0.5 + 20)
    # the models own prices go before the table
    table["*"] = {"input_cost_per_token": 100.0, "output_cost_per_token": 100.0}
    response = await cost_of(model_at, events_of, openai(), "openai/gpt-4o", prices=OURS)
    assert response.cost == pytest.approx(120)
    # the table knows what litellm does not
    table["openai/ours"] = OURS
    response = await cost_of(model_at, events_of, openai(), "openai/ours")
    assert response.cost == pytest.approx(120)
    # anthropics cache by the table
    table.clear()
    table["anthropic/*"] = {**OURS, "cache_read_input_token_cost": 0.1, "cache_creation_input_token_cost": 1.25}
    response = await cost_of(model_at, events_of, anthropic(), f"anthropic/{CLAUDE}")
    assert response.cost == pytest.approx(10 + 60 * 0.1 + 30 * 1.25 + 20)


@pytest.mark.usefixtures("clients")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
async def test_anthropics_cache_is_counted(model_at, events_of):
    response = await cost_of(model_at, events_of, anthropic(), f"anthropic/{CLAUDE}")
    assert (response.usage.input_tokens, response.usage.cached_tokens) == (100, 60)
    price = load_litellm().model_cost[CLAUDE]
    expected = 10 * price["input_cost_per_token"] + 60 * price["cache_read_input_token_cost"]
    expected += 30 * price["cache_creation_input_token_cost"] + 2 * price["output_cost_per_token"]
    assert response.cost == pytest.approx(expected)


def test_cached_tokens_under_any_name():
    for usage in [
        SimpleNamespace(prompt_tokens=9, completion_tokens=1, cache_read_input_tokens=4,
            cache_creation_input_tokens=3),
        SimpleNamespace(prompt_tokens=9, completion_tokens=1,
            prompt_tokens_details=SimpleNamespace(cached_tokens=4, cache_creation_tokens=3)),
    ]:  # fmt: skip
        with case(usage):
            collector = ResponseCollector()
            collector.provider_usage = usage
            assert (collector.usage.cached_tokens, collector.cache_writes) == (4, 3)

    collector = ResponseCollector()
    collector.provider_usage = SimpleNamespace(prompt_tokens=9, completion_tokens=1, prompt_cache_hit_tokens=4)
    assert (collector.usage.cached_tokens, collector.cache_writes) == (4, 0)


async def test_the_window_and_schemas():
    for name, settings, window in [
        ("gpt-4o", {}, 128_000), ("openai/gpt-4o", {}, 128_000), ("openai/ours", {}, None),
        ("openai/ours", {"context_window": 4096}, 4096), ("gpt-4o", {"context_window": 4096}, 4096),
    ]:  # fmt: skip
        assert await LiteLLMModel(name, **settings).context_window() == window, name
    for name, supported in [
        ("gpt-4o", True), ("openai/ours", False), ("ollama/llama3", False), ("no-such-model", False),
    ]:  # fmt: skip
        assert await LiteLLMModel(name).supports_schema() is supported, name


async def test_tokens_are_the_tokenizers(monkeypatch):
    litellm = load_litellm()
    messages = [ChatMessage.of("system", "Be brief."), ChatMessage.of("user", "How many tokens is this?")]
    counted = await LiteLLMModel("gpt-4o").count_tokens(messages)
    wire = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many tokens is this?"}]
    assert counted == litellm.token_counter(model="gpt-4o", messages=wire)
    # what is no text counts too
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
    # a message is counted once
    model = LiteLLMModel("gpt-4o")
    litellm = load_litellm()
    counter, calls = litellm.token_counter, []
    monkeypatch.setattr(litellm, "token_counter", lambda **given: calls.append(given) or counter(**given))
    messages = [ChatMessage.of("user", f"message {index}") for index in range(5)]
    first = await model.count_tokens(messages)
    assert await model.count_tokens(messages) == first
    again = await model.count_tokens([*messages, ChatMessage.of("user", "one more")])
    assert len(calls) == 6
    assert again > first


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
from ravi_django.calls.llm import LiteLLMModel
from ravi_django.kernel import ChatMessage, ImageBlock
from ravi_django.calls.llm import warm
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
        "gpt-4o", "anthropic/claude-sonnet-4-5", "ollama/llama3", "huggingface/x/y", "openai/ours",
        "cohere/command-r",
    ]  # fmt: skip
    done = await asyncio.to_thread(forks.run, ["-c", code, *names], capture_output=True, text=True, timeout=90)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(names)
    assert "False" not in {line.split()[2] for line in done.stdout.splitlines()}
