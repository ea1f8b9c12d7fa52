import asyncio

import pytest

from ravi_django.kernel import (
    ChatMessage,
    GenerationOptions,
    ModelResponse,
    RunMeta,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    ToolUseBlock,
    TransientError,
    Usage,
)
from ravi_django.testing import ScriptedModel

CALL = ToolUseBlock(tool_name="calculator", arguments={"expression": "1 + 1"}, call_id="c1")
USER = ChatMessage.of("user", "hi")
OPTIONS = GenerationOptions()


async def events(model, messages=(USER,), run_id="r1"):
    return [event async for event in model.stream(list(messages), OPTIONS, RunMeta(run_id=run_id))]


async def drive(model, messages=(USER,), run_id="r1"):
    """A tool loop: call the model until it answers with text; returns the whole conversation."""
    conversation = list(messages)
    while True:
        response = (await events(model, conversation, run_id))[-1]
        conversation.append(response.message)
        if not response.message.tool_calls:
            return conversation
        for call in response.message.tool_calls:
            result = ToolResultBlock(call_id=call.call_id, content=[TextBlock(text="2")])
            conversation.append(ChatMessage(role="tool", content=[result]))


async def test_text_streams_as_one_delta_or_as_words():
    delta, response = await events(ScriptedModel(["hello you"]))
    assert delta == TextDelta(text="hello you")
    assert isinstance(response, ModelResponse)
    assert (response.text, response.finish_reason, response.model) == ("hello you", "stop", "scripted")
    *deltas, response = await events(ScriptedModel(["hello  you there "], chunk="words"))
    assert [delta.text for delta in deltas] == ["hello ", " ", "you ", "there "]
    assert response.text == "hello  you there "
    response = (await events(ScriptedModel("x", usage=Usage(input_tokens=3), cost=0.25)))[-1]
    assert (response.usage.input_tokens, response.cost) == (3, 0.25)


async def test_the_conversation_chooses_the_item():
    model = ScriptedModel([CALL, "done"])
    conversation = await drive(model)
    replayed = await events(model, conversation[:1])
    second_question = await events(model, [*conversation, ChatMessage.of("user", "again")])
    assert (conversation[-1].text, replayed[-1].content) == ("done", [CALL])
    assert second_question[-1].content == [CALL]

    # callables see the conversation
    async def later(messages, options):
        return ModelResponse.of([TextBlock(text="late")], usage=Usage(input_tokens=9), cost=1.5)

    model = ScriptedModel([lambda messages, options: [CALL], later])
    conversation = await drive(model)
    response = (await events(model, conversation[:-1]))[-1]
    assert (conversation[-1].text, response.usage.input_tokens, response.cost) == ("late", 9, 1.5)
    # concurrent runs share one object
    model = ScriptedModel([CALL, [TextBlock(text="and"), CALL], "done"], chunk="words")
    conversations = await asyncio.gather(*(drive(model, run_id=f"r{number}") for number in range(50)))
    assert {conversation[-1].text for conversation in conversations} == {"done"}
    assert len(model.calls) == 150


async def test_calls_are_recorded():
    model = ScriptedModel([CALL, "done"])
    await drive(model, run_id="r7")
    assert [(call.run_id, call.turn, len(call.messages)) for call in model.calls] == [("r7", 0, 1), ("r7", 1, 3)]
    assert model.calls[0].options is OPTIONS
    with pytest.raises(AttributeError):
        model.calls[0].turn = 5
    model = ScriptedModel("x", record=False)
    await events(model)
    assert model.calls == []
    # exceptions are raised alike each time
    model = ScriptedModel([TransientError("busy", retry_after=1.0)])
    depths = []
    for _ in range(3):
        with pytest.raises(TransientError, match="busy") as caught:
            await events(model)
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


async def test_the_end_of_a_script():
    model = ScriptedModel([CALL], name="planner")
    with pytest.raises(AssertionError, match=r"'planner' has 1 items .* item 2"):
        await drive(model)

    with pytest.raises(AssertionError, match="0 items"):
        await events(ScriptedModel([], loop=True))
    # loop starts over with new call ids
    model = ScriptedModel([CALL], loop=True)
    conversation = [USER]
    for _ in range(3):
        conversation.append((await events(model, conversation))[-1].message)
    assert [message.tool_calls[0].call_id for message in conversation[1:]] == ["c1", "c1_2", "c1_3"]
