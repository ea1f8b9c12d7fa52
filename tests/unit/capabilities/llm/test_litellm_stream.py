"""Through the real litellm, against a real HTTP server."""

import asyncio
import gc
import json
import threading
import time
from types import SimpleNamespace

import pytest

from ravi_django.calls.llm import close_clients
from ravi_django.calls.llm.collector import ResponseCollector
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import (
    CancellationError,
    CancellationToken,
    ChatMessage,
    GenerationOptions,
    ModelResponse,
    ReasoningDelta,
    Role,
    RunMeta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
)
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY
from tests.support.anthropic_server import AnthropicServer
from tests.support.cases import case
from tests.support.openai_server import OpenAIServer, Reply, steps_script
from tests.support.patience import seconds

pytestmark = pytest.mark.usefixtures("clients")

CALCULATOR = ToolSpec(
    name="calculator",
    description="Calculates.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)


def litellm_observed(test):
    """litellm's callbacks raise a warning over its own pydantic types."""
    return pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")(test)


async def until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_text_streams_as_deltas_and_ends_with_one_response(model_at, events_of):
    with OpenAIServer(Reply(text="one two three")) as server:
        *deltas, response = await events_of(model_at(server))
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["one", " two", " three"]
    assert isinstance(response, ModelResponse)
    assert response.content == [TextBlock(text="one two three")]
    assert (response.model, response.finish_reason) == ("gpt-4o", "stop")
    # deltas arrive before the answer is complete
    with OpenAIServer(Reply(text="first second"), token_delay=30) as server:
        stream = model_at(server).stream([ChatMessage.of("user", "hi")], GenerationOptions(), RunMeta(run_id="r"))
        first = await anext(event async for event in stream if isinstance(event, TextDelta))
        await stream.aclose()
    assert first == TextDelta(text="first")
    # reasoning streams and is kept
    with OpenAIServer(Reply(reasoning="let me see", text="yes")) as server:
        events = await events_of(model_at(server))
    assert ReasoningDelta(text="let me see") in events
    assert events[-1].content == [ThinkingBlock(text="let me see"), TextBlock(text="yes")]


async def test_usage_and_price(model_at, events_of, monkeypatch):
    usage = {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 400}, "completion_tokens_details": {"reasoning_tokens": 30},
    }  # fmt: skip
    with OpenAIServer(Reply(text="ok", usage=usage)) as server:
        response = (await events_of(model_at(server)))[-1]
    counted = response.usage
    assert (counted.input_tokens, counted.cached_tokens) == (1000, 400)
    assert (counted.output_tokens, counted.reasoning_tokens) == (100, 30)
    price = load_litellm().model_cost["gpt-4o"]
    expected = 600 * price["input_cost_per_token"] + 400 * price["cache_read_input_token_cost"]
    assert response.cost == pytest.approx(expected + 100 * price["output_cost_per_token"])
    # unknown price is none
    with OpenAIServer() as server:
        response = (await events_of(model_at(server, "openai/my-own-model")))[-1]
    assert response.usage.total > 0
    assert response.cost is None
    # given prices win
    prices = {"input_cost_per_token": 0.5, "output_cost_per_token": 2.0}
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    with OpenAIServer(Reply(text="ok", usage=usage)) as server:
        response = (await events_of(model_at(server, prices=prices)))[-1]
    assert response.cost == pytest.approx(4 * 0.5 + 3 * 2.0)
    # usage is estimated when the server reports none
    monkeypatch.setattr("tests.support.openai_server._usage", lambda body, reply: None)
    with OpenAIServer(Reply(text="one two three")) as server:
        response = (await events_of(model_at(server), "how many tokens is this?"))[-1]
    assert response.usage.input_tokens >= 6
    assert response.usage.output_tokens == 3


async def test_tool_call_round_trip(model_at, events_of):
    conversation = [ChatMessage.of("system", "Be exact."), ChatMessage.of("user", "0 + 1?")]
    with OpenAIServer(steps_script(1, tokens=2)) as server:
        asked = (await events_of(model_at(server), conversation, tools=[CALCULATOR]))[-1]
        (call,) = asked.message.tool_calls
        result = ToolResultBlock(call_id=call.call_id, content=[TextBlock(text="1")])
        conversation += [asked.message, ChatMessage(role=Role.TOOL, content=[result])]
        answered = (await events_of(model_at(server), conversation, tools=[CALCULATOR]))[-1]

    assert (call.tool_name, call.arguments) == ("calculator", {"expression": "0 + 1"})
    assert (asked.finish_reason, answered.text) == ("tool_calls", "word0 word1")
    sent = server.requests[-1].body
    assert sent["tools"] == [{"type": "function", "function": CALCULATOR.model_dump()}]
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][2]["tool_calls"][0]["id"] == sent["messages"][3]["tool_call_id"] == call.call_id


@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
async def test_another_agents_answer_has_its_name_in_every_protocol(model_at, events_of):
    other = ChatMessage.of("assistant", "Hello Ada").model_copy(update={"name": "helper"})
    call = ToolUseBlock(tool_name="calculator", arguments={}, call_id="c1")
    own = ChatMessage(role=Role.ASSISTANT, content=[TextBlock(text="Let me see"), call])
    result = ChatMessage(role=Role.TOOL, content=[ToolResultBlock(call_id="c1", content=[TextBlock(text="1")])])
    conversation = [ChatMessage.of("user", "I am Ada"), other, own, result, other, ChatMessage.of("user", "And?")]
    bodies = []
    for server, name in ((OpenAIServer(), "openai/gpt-4o"), (AnthropicServer(), "anthropic/claude-sonnet-4-5")):
        with server:
            await events_of(model_at(server, name), conversation, tools=[CALCULATOR])
            bodies.append(server.requests[0].body["messages"])
    named = {"role": "assistant", "content": "Hello Ada", "name": "helper"}
    assert [bodies[0][1], bodies[0][4]] == [named, named]
    assert [message["role"] for message in bodies[0]] == ["user", "assistant", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in bodies[1]] == ["user", "assistant", "user", "assistant", "user"]
    text, use = bodies[1][1]["content"]
    assert (text["text"], use["type"]) == ("helper:\nHello Ada\n\nLet me see", "tool_use")
    assert [part["text"] for part in bodies[1][3]["content"]] == ["helper:\nHello Ada"]
    assert not any("name" in message for message in bodies[1])


async def test_calls_of_tools_are_read(model_at, events_of):
    # tool calls stream as deltas
    calls = (("calculator", {"expression": "1 + 1"}), ("calculator", {"expression": "2 + 2"}))
    with OpenAIServer(Reply(text="So", tool_calls=calls, call_ids=("a", "b"))) as server:
        *deltas, response = await events_of(model_at(server), tools=[CALCULATOR])
    pieces = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert {(piece.index, piece.call_id, piece.name) for piece in pieces} == {
        (0, "a", "calculator"),
        (1, "b", "calculator"),
    }
    for index, call in enumerate(response.message.tool_calls):
        written = [piece.arguments for piece in pieces if piece.index == index]
        assert len(written) > 1
        assert json.loads("".join(written)) == call.arguments
    # parallel calls under one index are told apart
    collector = ResponseCollector()
    function = SimpleNamespace(name="add", arguments="{}")
    pieces = [SimpleNamespace(index=0, id=call_id, function=function) for call_id in ("a", "b")]
    delta = SimpleNamespace(content=None, tool_calls=pieces)
    chunk = SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])
    assert [(piece.index, piece.call_id) for piece in collector.add(chunk)] == [(0, "a"), (1, "b")]
    # parallel calls keep their order and get unique ids
    calls = tuple(("calculator", {"expression": str(number)}) for number in range(4))
    earlier = ChatMessage(
        role=Role.ASSISTANT, content=[ToolUseBlock(tool_name="calculator", arguments={}, call_id="call_3")]
    )
    with OpenAIServer(Reply(tool_calls=calls, call_ids=("a", "a", None, None))) as server:
        messages = [ChatMessage.of("user", "hi"), earlier]
        response = (await events_of(model_at(server), messages, tools=[CALCULATOR]))[-1]
    made = response.message.tool_calls
    assert [call.arguments["expression"] for call in made] == ["0", "1", "2", "3"]
    assert [call.call_id for call in made] == ["a", "a_2", "call_2", "call_3_2"]
    # arguments that are no json object are kept as text
    for raw in ['{"expression": ', "[1, 2]", "1 + 1"]:
        with case(raw):
            with OpenAIServer(Reply(tool_calls=(("calculator", raw),))) as server:
                response = (await events_of(model_at(server), tools=[CALCULATOR]))[-1]
            assert response.message.tool_calls[0].arguments == {INVALID_ARGUMENTS_KEY: raw}
    # no arguments are an empty object
    with OpenAIServer(Reply(tool_calls=(("current_time", ""),))) as server:
        response = (await events_of(model_at(server), tools=[ToolSpec(name="current_time")]))[-1]
    assert response.message.tool_calls[0].arguments == {}


async def test_options_reach_the_provider(model_at, events_of):
    with OpenAIServer() as server:
        await events_of(
            model_at(server, temperature=0.9, seed=7), tools=[CALCULATOR], tool_choice="calculator", temperature=0.1,
            max_tokens=50, stop=["END"], extra={"user": "u1"}
        )  # fmt: skip
    sent = server.requests[0].body
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "calculator"}}
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.1, 7, 50)
    assert (sent["stop"], sent["user"]) == (["END"], "u1")


async def test_leaving_a_stream_closes_its_connection(model_at, events_of):
    # cancelling before the first token closes the connection
    with OpenAIServer(delay=60) as server:
        call = asyncio.create_task(events_of(model_at(server)))
        await until(lambda: server.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.disconnects == 1)
    # closing in mid stream closes the connection
    with OpenAIServer(Reply(text="a b c"), token_delay=60) as server:
        stream = model_at(server).stream([ChatMessage.of("user", "hi")], GenerationOptions(), RunMeta(run_id="r"))
        await anext(stream)
        assert server.disconnects == 0
        await stream.aclose()
        await until(lambda: server.disconnects == 1)
    # a cancelled run stops at the next token
    token = CancellationToken()
    with OpenAIServer(Reply(text="a b c")) as server:
        meta = RunMeta(run_id="r", cancellation=token)
        stream = model_at(server).stream([ChatMessage.of("user", "hi")], GenerationOptions(), meta)
        await anext(stream)
        token.cancel("enough")
        with pytest.raises(CancellationError, match="enough"):
            await anext(stream)

    # no connection stays open
    def is_open(one) -> bool:
        return not one.is_closing() and one.get_extra_info("peername") == ("127.0.0.1", server.port)

    with OpenAIServer() as server:
        await events_of(model_at(server))
        await close_clients()
        assert not [one for one in gc.get_objects() if issubclass(type(one), asyncio.Transport) and is_open(one)]


@litellm_observed
async def test_callbacks_of_the_site(model_at, events_of, site_callback):
    # litellm callbacks of the site still run
    with OpenAIServer(Reply(text="observed words")) as server:
        *deltas, response = await events_of(model_at(server))
        await until(lambda: site_callback)
    assert site_callback == ["observed words"]
    assert response.text == "".join(delta.text for delta in deltas) == "observed words"
    # tool calls and usage under litellms wrapper
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    reply = Reply(tool_calls=(("calculator", {"expression": "1"}), ("calculator", "{bad")), usage=usage)
    with OpenAIServer(reply) as server:
        response = (await events_of(model_at(server), tools=[CALCULATOR]))[-1]
    assert [call.arguments for call in response.message.tool_calls] == [
        {"expression": "1"},
        {INVALID_ARGUMENTS_KEY: "{bad"},
    ]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 2)
    assert response.cost is not None


@pytest.mark.parametrize("threads", [1, 3])
async def test_one_client_serves_many_loops(model_at, events_of, threads):
    """Celery's "attached to a different loop": litellm caches its HTTP clients."""
    answers: list[str] = []

    async def ask() -> None:
        try:
            answers.append((await events_of(model))[-1].text)
        finally:
            await close_clients()

    def loops_one_after_another() -> None:
        for _ in range(3):
            asyncio.run(ask())

    with OpenAIServer(Reply(text="here")) as server:
        model = model_at(server)
        workers = [threading.Thread(target=loops_one_after_another) for _ in range(threads)]
        for worker in workers:
            worker.start()
        await asyncio.to_thread(lambda: [worker.join(seconds(30)) for worker in workers])

    assert answers == ["here"] * 3 * threads


async def test_a_hundred_streams_at_once(model_at, events_of):
    with OpenAIServer(lambda body: Reply(text=f"echo {body['messages'][-1]['content']}"), delay=0.2) as server:
        model = model_at(server)
        answers = await asyncio.gather(*(events_of(model, f"number {number}") for number in range(100)))
    assert [events[-1].text for events in answers] == [f"echo number {number}" for number in range(100)]
