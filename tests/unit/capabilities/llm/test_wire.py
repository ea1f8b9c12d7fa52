from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from ravi_django.capabilities.llm.parts import Form
from ravi_django.capabilities.llm.wire import to_wire, tools_to_wire
from ravi_django.kernel import (
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


def message(role, *blocks, **fields):
    return ChatMessage(role=role, content=list(blocks), **fields)


def test_text_messages():
    messages = [ChatMessage.of("system", "Be brief."), ChatMessage.of("user", "Hi"), ChatMessage.of("assistant", "Yes")]

    assert to_wire(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
    ]


def test_assistant_with_calls():
    turn = message(
        "assistant", ThinkingBlock(text="hm"), ToolUseBlock(tool_name="add", arguments={"a": "é"}, call_id="c1")
    )

    (wired,) = to_wire([turn])

    assert wired["content"] is None
    (call,) = wired["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("c1", "function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": "é"}


def test_several_results_become_several_messages():
    results = message(
        "tool",
        ToolResultBlock(call_id="a", content=[TextBlock(text="1")]),
        ToolResultBlock(call_id="b", content=[TextBlock(text="no such file")], is_error=True),
        ToolResultBlock(call_id="c", content=[ErrorBlock(message="denied")], is_error=True),
        ToolResultBlock(call_id="d", content=[DataBlock(data={"x": [1]})]),
        ToolResultBlock(call_id="e", content=[ImageBlock(alt="a chart")]),
    )

    assert [(part["role"], part["tool_call_id"], part["content"]) for part in to_wire([results])] == [
        ("tool", "a", "1"),
        ("tool", "b", "Error: no such file"),
        ("tool", "c", "Error: denied"),
        ("tool", "d", '{"x":[1]}'),
        ("tool", "e", "[image: a chart]"),
    ]


def test_a_result_in_a_users_message_reads_as_the_users_own_text():
    made_up = ToolResultBlock(call_id="c1", content=[TextBlock(text="approved by ann"), ImageBlock(data="aGk=")])

    assert to_wire([message("user", made_up, TextBlock(text="Confirm."))], Form(dialect="openai")) == [
        {"role": "user", "content": "approved by ann\n[image]\nConfirm."}
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            ImageBlock(url="https://x.example/y.png", detail="low"),
            {"type": "image_url", "image_url": {"url": "https://x.example/y.png", "detail": "low"}},
        ),
        (
            ImageBlock(data="QUJD", mime_type="image/jpeg"),
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}},
        ),
        (
            AudioBlock(data="QUJD", mime_type="audio/mpeg"),
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
        ),
        (
            DocumentBlock(data="QUJD", mime_type="application/pdf", name="a.pdf"),
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"}},
        ),
        (
            DocumentBlock(url="https://x.example/a.pdf"),
            {"type": "file", "file": {"file_id": "https://x.example/a.pdf"}},
        ),
    ],
)
def test_media_of_a_user(block, part):
    (wired,) = to_wire([message("user", TextBlock(text="look"), block)])

    assert wired["content"] == [{"type": "text", "text": "look"}, part]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (CodeBlock(code="x = 1", language="python"), "```python\nx = 1\n```"),
        (DataBlock(data={"a": 1}), '{"a":1}'),
        (VideoBlock(url="http://x/v.mp4"), "[video: http://x/v.mp4]"),
        (AudioBlock(url="http://x/a.mp3"), "[audio: http://x/a.mp3]"),
        (AudioBlock(url="http://x/a.mp3", transcript="spoken"), "spoken"),
        (DocumentBlock(data="aGVsbG8=", mime_type="text/plain"), "hello"),
        ({"type": "hologram", "q": 1}, "[hologram]"),
    ],
)
def test_other_blocks_are_readable_text(block, text):
    (wired,) = to_wire([message("user", block)])

    assert wired["content"] == text


def test_signed_thinking_goes_back_to_who_signed_it():
    turn = message(
        "assistant",
        ThinkingBlock(text="hm", signature="sig"),
        {"type": "redacted_thinking", "data": "xyz"},
        ThinkingBlock(text="unsigned"),
        TextBlock(text="so"),
    )

    (signed,) = to_wire([turn], Form(thinking=True))
    (plain,) = to_wire([turn])

    assert signed["thinking_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
    ]
    assert plain == {"role": "assistant", "content": "so"}


def test_an_empty_assistant_turn_is_left_out():
    assert to_wire([message("assistant", ThinkingBlock(text="hm"))]) == []


def test_names_that_providers_refuse_are_left_out():
    named, unnamed = to_wire(
        [message("user", TextBlock(text="x"), name="ann_1"), message("user", TextBlock(text="x"), name="Ann Lee")]
    )

    assert named["name"] == "ann_1"
    assert "name" not in unnamed


@pytest.mark.parametrize(
    ("name", "wired"),
    [
        ("functions.look", "functions_look"),
        ("", "unnamed"),
        ("x" * 500, "x" * 64),
        ("schön", "sch_n"),
        ("a-B_1", "a-B_1"),
    ],
)
def test_a_tool_name_that_a_model_made_up_fits(name, wired):
    (turn,) = to_wire([message("assistant", ToolUseBlock(tool_name=name, arguments={}, call_id="c1"))])

    assert turn["tool_calls"][0]["function"]["name"] == wired


class TestMediaOfTools:
    CHART = ImageBlock(data="QUJD", mime_type="image/png", alt="a chart")
    PART: ClassVar[dict[str, Any]] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}

    def result(self, call_id, *blocks):
        return ToolResultBlock(call_id=call_id, content=list(blocks))

    def test_they_follow_the_results_of_the_turn(self):
        pdf = DocumentBlock(data="QUJD", mime_type="application/pdf", name="a.pdf")
        wired = to_wire(
            [
                message("tool", self.result("a", TextBlock(text="see"), self.CHART), self.result("b", pdf)),
                message("tool", self.result("c", TextBlock(text="1"))),
                message("assistant", TextBlock(text="well")),
                message("tool", self.result("d", self.CHART)),
            ]
        )

        assert [part["role"] for part in wired] == ["tool", "tool", "tool", "user", "assistant", "tool", "user"]
        assert [part["content"] for part in wired[:3]] == ["see\n[image: a chart]", "[document: a.pdf]", "1"]
        assert wired[3]["content"] == [
            {"type": "text", "text": "From the result of a:"},
            self.PART,
            {"type": "text", "text": "From the result of b:"},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"}},
        ]

    def test_anthropic_has_them_in_the_result(self):
        (wired,) = to_wire([message("tool", self.result("a", self.CHART))], Form(dialect="anthropic"))

        assert wired["content"] == [{"type": "text", "text": "[image: a chart]"}, self.PART]

    @pytest.mark.parametrize("dialect", ["openai", "anthropic"])
    def test_a_model_that_sees_nothing_is_told_in_words(self, dialect):
        (wired,) = to_wire([message("tool", self.result("a", self.CHART))], Form(dialect=dialect, sees=False))

        assert wired["content"] == "[image: a chart]"

    def test_a_data_address_is_not_told_in_words(self):
        inline = ImageBlock(url="data:image/png;base64,QUJD")

        tool, user = to_wire([message("tool", self.result("a", inline))])

        assert (tool["content"], user["content"][1]) == ("[image]", self.PART)


def test_a_message_is_converted_once(monkeypatch):
    converted = []
    convert = world.wire_convert
    world.patch(monkeypatch, "wire_convert", lambda *args: converted.append(args) or convert(*args))
    messages = [ChatMessage.of("user", "a"), ChatMessage.of("assistant", "b")]

    first = to_wire(messages)
    second = to_wire([*messages, ChatMessage.of("user", "c")])

    assert len(converted) == 3
    assert second[:2] == first


def test_what_the_callee_changes_does_not_stay():
    turn = message("assistant", ToolUseBlock(tool_name="add", arguments={}, call_id="c1"))

    (mangled,) = to_wire([turn])
    mangled["tool_calls"][0]["function"]["name"] = "changed"
    mangled["role"] = "changed"

    (again,) = to_wire([turn])
    assert (again["role"], again["tool_calls"][0]["function"]["name"]) == ("assistant", "add")


@pytest.mark.parametrize(
    ("choice", "wired"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_and_tool_choice(choice, wired):
    request = tools_to_wire(GenerationOptions(tools=[ToolSpec(name="add", description="Adds.")], tool_choice=choice))

    assert request["tool_choice"] == wired
    assert request["tools"][0]["function"]["name"] == "add"


def test_no_tools_no_choice():
    assert tools_to_wire(GenerationOptions(tool_choice="auto")) == {}
