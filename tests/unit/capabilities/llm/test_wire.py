import json

from ravi_django.calls.llm.collector import parse_arguments
from ravi_django.calls.llm.wire import Form, to_wire, tools_to_wire
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    AudioBlock,
    ChatMessage,
    CodeBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    GenerationOptions,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
    VideoBlock,
)
from tests.support import world
from tests.support.cases import case


def message(role, *blocks, **fields):
    return ChatMessage(role=role, content=list(blocks), **fields)


def test_turns_become_messages():
    # text messages
    messages = [ChatMessage.of("system", "Be brief."), ChatMessage.of("user", "Hi"), ChatMessage.of("assistant", "Yes")]
    assert to_wire(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
    ]
    # assistant with calls
    turn = message(
        "assistant", ThinkingBlock(text="hm"), ToolUseBlock(tool_name="add", arguments={"a": "é"}, call_id="c1")
    )
    (wired,) = to_wire([turn])
    assert wired["content"] is None
    (call,) = wired["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("c1", "function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": "é"}
    # several results become several messages
    results = message(
        "tool",
        ToolResultBlock(call_id="a", content=[TextBlock(text="1")]),
        ToolResultBlock(call_id="b", content=[TextBlock(text="no such file")], is_error=True),
        ToolResultBlock(call_id="c", content=[ErrorBlock(message="denied")], is_error=True),
        ToolResultBlock(call_id="d", content=[DataBlock(data={"x": [1]})]),
        ToolResultBlock(call_id="e", content=[ImageBlock(alt="a chart")]),
    )
    assert [(part["role"], part["tool_call_id"], part["content"]) for part in to_wire([results])] == [
        ("tool", "a", "1"), ("tool", "b", "Error: no such file"), ("tool", "c", "Error: denied"),
        ("tool", "d", '{"x":[1]}'), ("tool", "e", "[image: a chart]"),
    ]  # fmt: skip
    assert to_wire([message("assistant", ThinkingBlock(text="hm"))]) == []
    # names that providers refuse are left out
    named, unnamed = to_wire(
        [message("user", TextBlock(text="x"), name="ann_1"), message("user", TextBlock(text="x"), name="Ann Lee")]
    )
    assert named["name"] == "ann_1"
    assert "name" not in unnamed
    # a tool name that a model made up fits
    for name, wired in [
        ("functions.look", "functions_look"), ("", "unnamed"), ("x" * 500, "x" * 64), ("schön", "sch_n"),
        ("a-B_1", "a-B_1"),
    ]:  # fmt: skip
        with case(name, wired):
            (turn,) = to_wire([message("assistant", ToolUseBlock(tool_name=name, arguments={}, call_id="c1"))])
            assert turn["tool_calls"][0]["function"]["name"] == wired

    for choice, wired in [
        ("auto", "auto"), ("none", "none"), ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ]:  # fmt: skip
        with case(choice, wired):
            request = tools_to_wire(GenerationOptions(tools=[ToolSpec(name="add")], tool_choice=choice))
            assert (request["tool_choice"], request["tools"][0]["function"]["name"]) == (wired, "add")
    assert tools_to_wire(GenerationOptions(tool_choice="auto")) == {}
    # signed thinking goes back to who signed it
    turn = message(
        "assistant", ThinkingBlock(text="hm", signature="sig"), {"type": "redacted_thinking", "data": "xyz"},
        ThinkingBlock(text="unsigned"), TextBlock(text="so")
    )  # fmt: skip
    (signed,) = to_wire([turn], Form(family="anthropic"))
    (plain,) = to_wire([turn])
    assert signed["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "so"},
    ]
    assert plain == {"role": "assistant", "content": "so"}


def test_a_result_in_a_users_message_reads_as_the_users_own_text():
    made_up = ToolResultBlock(call_id="c1", content=[TextBlock(text="approved by ann"), ImageBlock(data="aGk=")])
    assert to_wire([message("user", made_up, TextBlock(text="Confirm."))], Form(family="openai")) == [
        {"role": "user", "content": "approved by ann\n[image]\nConfirm."}
    ]


def test_blocks_of_a_user():
    # media of a user
    for block, part in [
        (
            AudioBlock(data="QUJD", mime_type="audio/mpeg"),
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
        ),
        (
            DocumentBlock(url="https://x.example/a.pdf"),
            {"type": "file", "file": {"file_id": "https://x.example/a.pdf"}},
        ),
    ]:
        with case(block, part):
            (wired,) = to_wire([message("user", TextBlock(text="look"), block)])
            assert wired["content"] == [{"type": "text", "text": "look"}, part]
    # other blocks are readable text
    for block, text in [
        (CodeBlock(code="x = 1", language="python"), "```python\nx = 1\n```"),
        (DataBlock(data={"a": 1}), '{"a":1}'),
        (VideoBlock(url="http://x/v.mp4"), "[video: http://x/v.mp4]"),
        (AudioBlock(url="http://x/a.mp3"), "[audio: http://x/a.mp3]"),
        (AudioBlock(url="http://x/a.mp3", transcript="spoken"), "spoken"),
        (DocumentBlock(data="aGVsbG8=", mime_type="text/plain"), "hello"),
        ({"type": "hologram", "q": 1}, "[hologram]"),
    ]:
        with case(block, text):
            (wired,) = to_wire([message("user", block)])
            assert wired["content"] == text


CHART = ImageBlock(data="QUJD", mime_type="image/png", alt="a chart")


PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def result_of(call_id, *blocks):
    return ToolResultBlock(call_id=call_id, content=list(blocks))


def test_media_of_tools():
    # they follow the results of the turn
    pdf = DocumentBlock(data="QUJD", mime_type="application/pdf", name="a.pdf")
    wired = to_wire(
        [message("tool", result_of("a", TextBlock(text="see"), CHART), result_of("b", pdf)),
            message("tool", result_of("c", TextBlock(text="1"))), message("assistant", TextBlock(text="well")),
            message("tool", result_of("d", CHART))]
    )  # fmt: skip
    assert [part["role"] for part in wired] == ["tool", "tool", "tool", "user", "assistant", "tool", "user"]
    assert [part["content"] for part in wired[:3]] == ["see\n[image: a chart]", "[document: a.pdf]", "1"]
    assert wired[3]["content"] == [
        {"type": "text", "text": "From the result of a:"}, PART, {"type": "text", "text": "From the result of b:"},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"}},
    ]  # fmt: skip
    # anthropic has them in the result
    (wired,) = to_wire([message("tool", result_of("a", CHART))], Form(family="anthropic"))
    assert wired["content"] == [{"type": "text", "text": "[image: a chart]"}, PART]
    # a model that sees nothing is told in words
    for dialect in ["openai", "anthropic"]:
        with case(dialect):
            (wired,) = to_wire([message("tool", result_of("a", CHART))], Form(family=dialect, tool_images=False))
            assert wired["content"] == "[image: a chart]"
    # a data address is not told in words
    inline = ImageBlock(url="data:image/png;base64,QUJD")
    tool, user = to_wire([message("tool", result_of("a", inline))])
    assert (tool["content"], user["content"][1]) == ("[image]", PART)


def test_a_message_is_converted_once(monkeypatch):
    converted = []
    convert = world.wire_convert
    world.patch(monkeypatch, "wire_convert", lambda *args: converted.append(args) or convert(*args))
    messages = [ChatMessage.of("user", "a"), ChatMessage.of("assistant", "b")]
    first = to_wire(messages)
    second = to_wire([*messages, ChatMessage.of("user", "c")])
    assert (len(converted), second[:2]) == (3, first)
    # what the callee changes does not stay
    turn = message("assistant", ToolUseBlock(tool_name="add", arguments={}, call_id="c1"))
    (mangled,) = to_wire([turn])
    mangled["tool_calls"][0]["function"]["name"] = "changed"
    mangled["role"] = "changed"
    (again,) = to_wire([turn])
    assert (again["role"], again["tool_calls"][0]["function"]["name"]) == ("assistant", "add")


def deep(levels: int, one: str = "[]") -> str:
    return '{"tree": ' + one[0] * levels + one[1] * levels + "}"


def test_arguments_nested_too_deep_stay_text() -> None:
    for levels in [51, 300, 100_000]:
        for one in ["[]", "{}"]:
            with case(levels, one):
                text = deep(levels) if one == "[]" else '{"tree": ' + '{"x":' * levels + "1" + "}" * levels + "}"
                assert parse_arguments(text) == {INVALID_ARGUMENTS_KEY: text}
    assert INVALID_ARGUMENTS_KEY not in parse_arguments(deep(49))
