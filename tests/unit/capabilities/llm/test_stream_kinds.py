"""Streams as servers really send them: an agent's run, through the real litellm, against a server on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from ravi_django.kernel import RetryPolicy
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY
from ravi_django.models import Run
from ravi_django.testing import journal_of, run_until_idle
from tests.support.cases import case
from tests.support.providers import (
    DONE,
    USAGE,
    Document,
    Provider,
    answer,
    call_piece,
    check_claude,
    chunk,
    claude,
    data,
    says,
)

pytestmark = pytest.mark.django_db(transaction=True)


def echoed(run: Run) -> list[str]:
    return [entry.result["content"][0]["text"] for entry in journal_of(run) if entry.kind == "tool.call"]


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"signed {text}"}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "echo", "input": {"text": id}}


REDACTED = {"type": "redacted_thinking", "data": "ENC"}
TEXT = {"type": "text", "text": "I look."}


CALLS: dict[str, tuple[Sequence[str], list[str]]] = {
    "another id in each piece": (
        [call_piece(0, "c1", name="echo", arguments='{"text":'), call_piece(0, "c9", arguments='"x"}')],
        ["x"],
    ),
    "another id and the name in each piece": (
        [call_piece(0, "c1", name="echo", arguments='{"te'), call_piece(0, "c2", name="echo", arguments='xt":"x"}')],
        ["x"],
    ),
    "all calls at index 0": (
        [call_piece(0, id, name="echo", arguments=f'{{"text": "{id}"}}') for id in ("a", "b")],
        ["a", "b"],
    ),
    "all calls at index 0 without ids": (
        [call_piece(0, name="echo", arguments=f'{{"text": "{text}"}}') for text in ("a", "b")],
        ["a", "b"],
    ),
    "one id for two calls": (
        [call_piece(at, "c1", name="echo", arguments=f'{{"text": "{at}"}}') for at in (0, 1)],
        ["0", "1"],
    ),
    "a call that goes on at another index": (
        [
            call_piece(0, "c1", name="echo", arguments='{"text": "a"}'),
            call_piece(0, "c2", name="echo", arguments=""),
            call_piece(1, arguments='{"text": "b"}'),
        ],
        ["a", "b"],
    ),
    "a name in pieces": (
        [
            call_piece(0, "c1", name="ec", arguments=""),
            call_piece(0, name="ho"),
            call_piece(0, arguments='{"text":"x"}'),
        ],
        ["x"],
    ),
    "arguments as an object": ([call_piece(0, "c1", name="echo", arguments={"text": "x"})], ["x"]),
    "no index": (
        [call_piece(None, "c1", name="echo", arguments='{"text"'), call_piece(None, arguments=':"x"}')],
        ["x"],
    ),
    "an empty object, then the arguments": (
        [
            call_piece(0, "c1", name="echo", arguments="{}"),
            call_piece(0, arguments='{"te'),
            call_piece(0, arguments='xt":"x"}'),
        ],
        ["x"],
    ),
    "the arguments twice": (
        [call_piece(0, "c1", name="echo", arguments='{"text":"x"}'), call_piece(0, arguments='{"text":"x"}')],
        ["x"],
    ),
    "encoded twice": ([call_piece(0, "c1", name="echo", arguments='"{\\"text\\":\\"x\\"}"')], ["x"]),
    "a tag after the arguments": ([call_piece(0, "c1", name="echo", arguments='{"text":"x"}\n</tool_call>')], ["x"]),
    "a line break and a comma": ([call_piece(0, "c1", name="echo", arguments='{"text":"a\nb",}')], ["a\nb"]),
    "the name once more at the end": (
        [call_piece(0, "c1", name="echo", arguments='{"text":"x"}'), call_piece(0, name="echo", arguments="")],
        ["x"],
    ),
    "an id that is a number": ([call_piece(0, 5, name="echo", arguments='{"text":"x"}')], ["x"]),  # type: ignore[arg-type]
    "no function": ([chunk({"tool_calls": [None, {"index": 0, "name": "echo", "arguments": '{"text":"x"}'}]})], ["x"]),
    "the old form": (
        [chunk({"function_call": {"name": "echo"}}), chunk({"function_call": {"arguments": '{"text":"x"}'}})],
        ["x"],
    ),
    "spaces around the name": ([call_piece(0, "c1", name=" echo\n", arguments='{"text":"x"}')], ["x"]),
    "no arguments": ([call_piece(0, "c1", name="echo"), call_piece(1, "c2", name="echo")], ["nothing", "nothing"]),
}


def test_calls_are_read_in_any_pieces(play: Any) -> None:
    for name, (pieces, results) in CALLS.items():
        with case(name), Provider(answer(*pieces, reason="tool_calls"), says("done")) as provider:
            run = play(provider)
            assert (sorted(echoed(run)), run.output, len(provider.requests)) == (results, "done", 2), run.error
            sent = [turn for turn in provider.requests[1]["messages"] if turn["role"] in ("assistant", "tool")]
            asked = [call["id"] for turn in sent for call in turn.get("tool_calls", ())]
            assert asked == [turn["tool_call_id"] for turn in sent if turn["role"] == "tool"]
            assert len(set(asked)) == len(results)


TEXTS: dict[str, tuple[Sequence[Any], str]] = {
    "parts": ([chunk({"content": [{"type": "text", "text": "h"}]}), chunk({"content": ["i"]}), *answer()], "hi"),
    "open after its end": ([*says("hi"), 30.0], "hi"),
    "no finish reason": ([chunk({"content": "hi"}), USAGE, DONE], "hi"),
    "choices null": ([data({"choices": None}), data({"id": "x"}), *says("hi")], "hi"),
    "halves of an emoji": ([chunk({"content": "a\ud83d"}), chunk({"content": "\ude00b"}), *answer()], "a😀b"),
    "half an emoji at the end": ([chunk({"content": "a\ud83d"}), *answer()], "a"),
    "a line separator": (
        ['data: {"choices":[{"delta":{"content":"a\u2028b"},"finish_reason":"stop"}]}', DONE],
        "a\u2028b",
    ),
    "a hundred equal pieces": ([*[chunk({"content": "-----"})] * 150, *answer()], "-" * 750),
    "a BOM": (["\ufeff" + chunk({"content": "hi"}), *answer()], "hi"),
    "CR alone": (["\r\r".join([chunk({"content": "hi"}), *map(str, answer())])], "hi"),
    "CRLF in two pieces": (
        [
            b'data: {"choices":[{"delta":\r',
            0.1,
            b'\ndata: {"content":"hi"},"finish_reason":"stop"}]}\r\n\r\n',
            USAGE,
            DONE,
        ],
        "hi",
    ),
    "a piece in several lines": (
        ['data: {"choices":[{"delta":\ndata: {"content":"hi"},\ndata: "finish_reason":"stop"}]}', USAGE, DONE],
        "hi",
    ),
    "an empty error": ([chunk({"content": "hi"}, error={"message": "", "code": None}), *answer()], "hi"),
    "null": (["data: null", *says("hi")], "hi"),
    "a message": ([data({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}), USAGE, DONE], "hi"),
    "a number": ([chunk({"content": 4}), chunk({"content": {"type": "text", "text": "2"}}), *answer()], "42"),
    "thoughts of no type of ours": ([chunk({"reasoning_details": [{"text": "hm"}]}), *says("hi")], "hi"),
    "signs of life": ([": at work", 0.1, chunk({"content": ""}), 0.1, ": at work", *says("hi")], "hi"),
}


def test_texts_are_read_in_any_pieces(play: Any) -> None:
    for name, (pieces, text) in TEXTS.items():
        with case(name), Provider(pieces) as provider:
            run = play(provider)
            assert (run.output, len(provider.requests)) == (text, 1), run.error
    document = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    with case("a document"), Provider(Document(document)) as provider:
        run = play(provider)
        assert (run.output, run.input_tokens) == ("hi", 3)


def test_openrouters_thoughts_are_kept_once_and_whole(play: Any) -> None:
    thoughts = [
        chunk({"reasoning": word, "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": word}]})
        for word in ("I ", "think.")
    ]
    asks = answer(*thoughts, call_piece(0, "a", name="echo", arguments='{"text": "x"}'), reason="tool_calls")
    with Provider(asks, says("done")) as provider:
        run = play(provider, "openrouter/anthropic/claude-sonnet-4.5")
        assert run.output == "done", run.error
        (said,) = (message for message in provider.requests[1]["messages"] if message["role"] == "assistant")
    assert said["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "I think."}]


def test_arguments_that_are_no_json_do_not_go_back_as_they_came(play: Any) -> None:
    asks = answer(call_piece(0, "a", name="echo", arguments='{"text": NaN}'), reason="tool_calls")
    with Provider(asks, says("done")) as provider:
        assert play(provider).output == "done"
        (said,) = (message for message in provider.requests[1]["messages"] if message["role"] == "assistant")
    assert INVALID_ARGUMENTS_KEY in said["tool_calls"][0]["function"]["arguments"]


def test_tokens_are_counted_wherever_the_server_has_them(play: Any) -> None:
    count, named = (
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        {"input_tokens": 10, "output_tokens": 5},
    )
    last = {"delta": {}, "finish_reason": "stop"}
    for name, pieces in {
        "in the choice": [data({"choices": [{**last, "usage": count}]})],
        "of Groq": [chunk(reason="stop", x_groq={"usage": count})],
        "then nothing": [chunk(reason="stop"), USAGE, data({"usage": {"prompt_tokens": 0, "completion_tokens": None}})],
        "other names": [chunk(reason="stop"), data({"usage": named})],
        "only the sum": [chunk(reason="stop"), data({"usage": {"completion_tokens": 5.0, "total_tokens": "15"}})],
        "thoughts beside": [
            chunk(reason="stop"),
            data({"usage": count | {"completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 3}}}),
        ],
    }.items():
        for model in ("openai/gpt-x", "deepseek/deepseek-chat", "openrouter/any/model"):
            with case(name, model), Provider([chunk({"content": "hi"}), *pieces, DONE]) as provider:
                run = play(provider, model)
                assert (run.output, run.input_tokens, run.output_tokens) == ("hi", 10, 5), run.error


@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")  # litellm's own types
def test_silence_counts_from_the_last_sign_of_life(begin: Any, settings: Any) -> None:
    """All wait at once. Their first calls import parts of litellm, and have time for that."""
    at_once, (start, *rest) = claude(TEXT), claude(TEXT)
    with ExitStack() as stack:
        providers = [
            (stack.enter_context(Provider(quick, slow)), model, key)
            for key, model, quick, slow in (
                ("comment", "openai/gpt-x", says("I look."), [*[1.5, ": at work"] * 3, *says("I look.")]),
                ("piece", "openai/gpt-x", says("I look."), [*[1.5, chunk({"content": ""})] * 3, *says("I look.")]),
                (
                    "ping",
                    "anthropic/claude-sonnet-4-5",
                    at_once,
                    [start, *[1.5, 'event: ping\ndata: {"type": "ping"}'] * 3, *rest],
                ),
                (
                    "litellm",
                    "mistral/mistral-large-latest",
                    says("I look."),
                    [*[1.5, ": at work"] * 3, *says("I look.")],
                ),
            )
        ]
        for timeout_s in (60.0, 4.0):
            settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": timeout_s}
            runs = [begin(provider, model, key=key) for provider, model, key in providers]
            run_until_idle()

    for run in runs:
        run.refresh_from_db()
        assert run.output == "I look.", (run.agent, run.error)


def test_an_error_as_data_has_the_status_of_its_code(play: Any) -> None:
    for error, kind in (
        ({"error": {"message": "too long", "code": 400}}, "ModelError"),
        ({"error": {"message": "no funds", "code": "402"}}, "ModelError"),
        ({"object": "error", "message": "unknown model", "code": 404}, "ModelError"),
        ({"error": "too long", "code": 400}, "ModelError"),
        ({"error": {"message": "no key", "type": "authentication_error"}}, "ModelError"),
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, "ModelError"),
        ({"error": {"error": {"message": "too long", "status_code": 400}}}, "ModelError"),
        ([{"error": {"message": "too long", "code": 400}}], "ModelError"),
        ({"message": "too long", "code": "InvalidParameter"}, "ModelError"),
        ({"choices": [{"delta": {}, "error": {"message": "too long", "code": 400}}]}, "ModelError"),
        ('error: {"message": "too long", "code": 400}', "ModelError"),  # of llama.cpp
        ('event: error\ndata: {"message": "too long", "code": 400}', "ModelError"),
        ({"error": {"message": "overloaded", "code": 503}}, "TransientError"),
    ):
        line = error if isinstance(error, str) else data(error)
        with case(error), Provider([chunk({"content": "h"}), line, DONE]) as provider:
            run = play(provider, retry=RetryPolicy(base_s=60.0))
            assert run.status == ("failed" if kind == "ModelError" else "pending"), run.error
            assert len(provider.requests) == 1


def test_claude_gets_its_blocks_as_they_came(play: Any) -> None:
    for said in (
        [REDACTED, thought("1"), TEXT, thought("2"), use("a")],
        [thought("1"), use("a"), thought("2"), use("b")],
        [thought("1"), REDACTED, thought("2"), use("a"), use("b")],
        [TEXT, use("a"), {"type": "text", "text": "And more."}, use("b")],
        [{"type": "thinking", "thinking": "", "signature": "alone"}, use("a")],
    ):
        with (
            case(said),
            Provider(claude(*said, reason="tool_use"), claude(TEXT), checker=check_claude([said])) as server,
        ):
            run = play(server, "anthropic/claude-sonnet-4-5")
            assert (run.output, server.refused, len(server.requests)) == ("I look.", [], 2), run.error
            assert [block for block in server.requests[1]["messages"][1]["content"] if "text" not in block] == [
                block for block in said if "text" not in block
            ]
