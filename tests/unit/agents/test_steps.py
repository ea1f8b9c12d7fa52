"""Stored step rows become a conversation that every provider takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_django.agents import rebuild_messages_from_steps
from ravi_django.agents.dangling import INTERRUPTED
from ravi_django.kernel import ChatMessage, ImageBlock, InvalidInputError, Role, TextBlock, ToolResultBlock
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY


def call(call_id: str, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": call_id, "tool_name": name, "arguments": arguments}


def result(call_id: str, content: Any = "3", **more: Any) -> dict[str, Any]:
    return {"kind": "tool_result", "call_id": call_id, "content": content, **more}


def user(text: str) -> dict[str, Any]:
    return {"kind": "user_message", "content": text}


def assistant(text: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "assistant_message", "content": text, **more}


def shape(messages: list[ChatMessage]) -> list[Any]:
    """(role, text), (role, call ids) or (role, results)."""
    found: list[Any] = []
    for message in messages:
        if message.role is Role.TOOL:
            found.append(("tool", [(block.call_id, block.text) for block in message.content]))  # type: ignore[union-attr]
        elif message.tool_calls:
            found.append(("assistant", message.text, [block.call_id for block in message.tool_calls]))
        else:
            found.append((str(message.role.value), message.text))
    return found


def test_a_conversation_is_told_again() -> None:
    steps = [
        {"kind": "system_message", "content": "Be brief."},
        user("1 + 2?"),
        assistant("Let me see."),
        call("c1", a=1, b=2),
        result("c1"),
        assistant("3."),
    ]

    assert shape(rebuild_messages_from_steps(steps)) == [
        ("system", "Be brief."),
        ("user", "1 + 2?"),
        ("assistant", "Let me see.", ["c1"]),
        ("tool", [("c1", "3")]),
        ("assistant", "3."),
    ]


@pytest.mark.parametrize(
    "steps",
    [
        [call("a"), call("b"), result("a", "1"), result("b", "2")],
        [call("a"), call("b"), result("b", "2"), result("a", "1")],
        [assistant(tool_calls=[call("a"), call("b")]), result("b", "2"), result("a", "1")],
        [assistant(tool_calls=[call("a"), call("b")]), call("a"), result("a", "1"), call("b"), result("b", "2")],
        [{"kind": "tool_calls", "calls": [call("a"), call("b")]}, {"kind": "tool_results", "results": [
            result("b", "2"), result("a", "1")]}],
    ],
    ids=["in order", "out of order", "listed", "listed and repeated", "in one row"],
)  # fmt: skip
def test_parallel_calls_stay_together_with_their_results_in_order(steps: list[Any]) -> None:
    assert shape(rebuild_messages_from_steps([user("go"), *steps])) == [
        ("user", "go"),
        ("assistant", "", ["a", "b"]),
        ("tool", [("a", "1"), ("b", "2")]),
    ]


def test_calls_one_after_the_other_are_turns_of_their_own() -> None:
    steps = [call("a"), result("a", "1"), call("b"), result("b", "2")]

    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a"]),
        ("tool", [("a", "1")]),
        ("assistant", "", ["b"]),
        ("tool", [("b", "2")]),
    ]


def test_a_result_that_came_after_other_words_goes_to_its_call() -> None:
    steps = [call("a"), user("hurry"), result("a", "1")]

    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a"]),
        ("tool", [("a", "1")]),
        ("user", "hurry"),
    ]


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_goes() -> None:
    steps = [call("a"), call("b"), result("b", "2"), result("zzz"), result("b", "twice"), assistant("done")]

    assert shape(rebuild_messages_from_steps(steps)) == [
        ("assistant", "", ["a", "b"]),
        ("tool", [("b", "2")]),
        ("tool", [("a", INTERRUPTED)]),
        ("assistant", "done"),
    ]


def test_ids_that_are_used_again_in_a_later_turn_pair_with_the_latest_call() -> None:
    steps = [call("c0"), result("c0", "1"), assistant("one"), call("c0"), result("c0", "2")]

    assert [one for one in shape(rebuild_messages_from_steps(steps)) if one[0] == "tool"] == [
        ("tool", [("c0", "1")]),
        ("tool", [("c0", "2")]),
    ]


def test_rows_may_be_objects_with_a_payload_and_the_names_of_other_tools() -> None:
    steps = [
        SimpleNamespace(type="user", payload={"text": "hi"}),
        SimpleNamespace(type="assistant", payload={"text": None, "tool_calls": [
            {"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}}]}),
        SimpleNamespace(type="tool_result", data={"tool_call_id": "x", "output": {"sum": 1}, "is_error": True}),
    ]  # fmt: skip

    _, said, answered = rebuild_messages_from_steps(steps)

    assert (said.tool_calls[0].tool_name, said.tool_calls[0].arguments) == ("add", {"a": 1})
    assert answered.content == [ToolResultBlock(call_id="x", content=[TextBlock(text='{"sum":1}')], is_error=True)]


def test_content_blocks_survive_and_arguments_that_are_no_json_are_kept() -> None:
    image = {"type": "image", "url": "https://example.org/a.png"}
    steps = [
        {"kind": "user_message", "content": [{"type": "text", "text": "see"}, image]},
        {"kind": "tool_call", "call_id": "a", "tool_name": "add", "arguments": "{oops"},
    ]

    said, called, _ = rebuild_messages_from_steps(steps)

    assert said.content == [TextBlock(text="see"), ImageBlock(url="https://example.org/a.png")]
    assert called.tool_calls[0].arguments == {INVALID_ARGUMENTS_KEY: "{oops"}


@pytest.mark.parametrize(
    ("steps", "field", "words"),
    [
        ([user("a"), {"kind": "progress"}], "steps.1", "'progress'"),
        ([{}], "steps.0", "None"),
        ([{"kind": "tool_call", "call_id": "a"}], "steps.0", "tool_name"),
        ([{"kind": "user", "content": [{"type": "text"}]}], "steps.0", "blocks"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(steps: list[Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        rebuild_messages_from_steps(steps)

    assert caught.value.field == field
    assert words in str(caught.value)


def test_unknown_kinds_can_be_skipped() -> None:
    assert shape(rebuild_messages_from_steps([{"kind": "progress"}, user("a")], unknown="skip")) == [("user", "a")]


STEPS = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from(["a", "b"])),
        st.builds(assistant, st.sampled_from(["", "said"])),
        st.builds(call, st.sampled_from("xyz")),
        st.builds(result, st.sampled_from("xyz")),
    ),
    max_size=14,
)


@given(STEPS)
def test_every_call_has_one_result_right_behind_it_whatever_the_rows(steps: list[Any]) -> None:
    messages = rebuild_messages_from_steps(steps)

    waiting: list[str] = []
    for message in messages:
        assert message.content
        if message.role is Role.TOOL:
            for block in message.content:
                waiting.remove(block.call_id)  # type: ignore[union-attr]
        else:
            assert not waiting
            waiting = [block.call_id for block in message.tool_calls]
    assert not waiting
    calls = sum(step["kind"] == "tool_call" for step in steps)
    assert sum(len(message.tool_calls) for message in messages) == calls
