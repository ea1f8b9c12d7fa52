"""Answers that are cut off, empty or refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from ravi_django import submit
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import Provider, answer, call_piece, chunk, claude, says
from tests.unit.capabilities.llm.test_stream_kinds import TEXT, echoed, thought, use

pytestmark = pytest.mark.django_db(transaction=True)


class Parcel(BaseModel):
    order: int


def told(request: dict[str, Any]) -> str:
    content = request["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


def test_a_cut_call_never_runs(play: Any) -> None:
    whole, half = call_piece(0, "a", name="echo", arguments='{"text": "x"}'), '{"text": "hal'
    for name, pieces in {
        "no arguments": [call_piece(0, "a", name="echo", arguments="")],
        "half": [call_piece(0, "a", name="echo", arguments=half)],
        "the second": [whole, call_piece(1, "b", name="echo", arguments=half)],
    }.items():
        cut = answer(*pieces, reason="length")
        with case(name), Provider(cut, answer(whole, reason="tool_calls"), says("done")) as provider:
            run = play(provider)
            assert (run.output, echoed(run), "cut off" in told(provider.requests[1])) == ("done", ["x"], True)
            assert "cut off" not in str(provider.requests[2]), "the hint is in one request alone"
        with case(name, "again"), Provider(cut) as provider:
            run = play(provider)
            assert (run.error["type"], echoed(run), len(provider.requests)) == ("AnswerCut", [], 2)


def test_other_names_of_an_end_run_no_cut_call(play: Any) -> None:
    call = call_piece(0, "a", name="echo", arguments='{"text": "x"}')
    for model in ("openai/gpt-x", "deepseek/deepseek-chat"):
        for reason, error in {
            "max_output_tokens": "AnswerCut", "model_context_window_exceeded": "AnswerCut",
            "abort": "StreamError", "insufficient_system_resource": "StreamError",
            "sensitive": None, "content-filter": None,
        }.items():  # fmt: skip
            ended = answer(chunk({"content": "I cannot."}), call, reason=reason)
            with case(model, reason), Provider([*ended[:-2], chunk(reason="stop"), *ended[-2:]]) as provider:
                run = play(provider, model)
                assert (run.error and run.error["type"], echoed(run)) == (error, [])
        with case(model, "null"), Provider([chunk({"content": "half"}, reason="null")]) as provider:
            assert play(provider, model).error["type"] == "StreamCut"


def test_an_empty_answer_is_asked_for_once_more_and_paid(play: Any) -> None:
    nothing = answer(chunk({"content": ""}))
    for name, empty in {"empty": nothing, "thoughts": answer(chunk({"reasoning_content": "hm"}))}.items():
        with case(name), Provider(empty, says("ok")) as provider:
            run = play(provider)
            assert (run.output, run.input_tokens) == ("ok", 20)
            assert "was empty" in told(provider.requests[1])
        with case(name, "again"), Provider(empty) as provider:
            run = play(provider)
            assert (run.error["type"], len(provider.requests)) == ("EmptyResponse", 2)


def test_claudes_empty_end_of_a_turn_ends_it_with_what_was_said(play: Any) -> None:
    with Provider(claude(TEXT, use("a"), reason="tool_use"), claude()) as server:
        run = play(server, "anthropic/claude-sonnet-4-5")
    assert (run.output, len(server.requests)) == ("I look.", 2), run.error


def test_a_refusal_is_the_answer(play: Any) -> None:
    for name, refusal in {
        "refusal": answer(chunk({"refusal": "I cannot help."})),
        "filter": answer(chunk({"content": "I cannot help."}), reason="content_filter"),
        "with a call": answer(
            chunk({"content": "I cannot help."}), call_piece(0, "a", name="echo"), reason="content_filter"
        ),
    }.items():
        with case(name), Provider(refusal) as provider:
            run = play(provider)
            assert (run.status, run.output, echoed(run)) == ("completed", "I cannot help.", [])
        with case(name, "typed"), Provider(refusal) as provider:
            run = play(provider, result_model=Parcel)
            assert (run.error["type"], len(provider.requests)) == ("ResultInvalidError", 1)
    with case("without words"), Provider(answer(reason="content_filter")) as provider:
        assert "filter" in play(provider).output


def test_a_typed_answer_is_read_wherever_the_model_puts_it(play: Any) -> None:
    for text in (
        '```json {"order": 3} ```',
        '<think>\nIt is {"order": 4}?\n</think>\n\n{"order": 3}',
        'Here it is:\n```\n{"order": 3}\n```\nAnything else?',
        'The parcel is {"order": 3}.',
        'Of {x} and {y}: {"order": 4}, or better {"order": 3}, not {z}.',
        '[{"order": 3}]',
        '"{\\"order\\": 3}"',
        '{"Parcel": {"order": 3}}',
        '<tool_call>\n{"name": "final_result", "arguments": {"order": 3}}\n</tool_call>',
        '{"type": "object", "properties": {"order": {"type": "integer"}}}\n{"order": 3}',
        '{"properties": {"order": 3}, "required": ["order"], "type": "object"}',
        '{"order": 3,}',
        "{'order': 3}",
        '[THINK]{"order": 4}[/THINK]{"order": 3}',
        '<|channel|>analysis<|message|>{"order": 4}<|end|><|channel|>final<|message|>{"order": 3}',
        '{"order": 3, "note": "a </think> b"}',
        '~~~json title="it"\n{"order": 3}\n~~~',
    ):
        with case(text), Provider(says(text)) as provider:
            run = play(provider, result_model=Parcel)
            assert (run.output, len(provider.requests)) == ('{"order":3}', 1), run.error
    with case("a thought that does not end"), Provider(says('<think>{"order": 4}'), says('{"order": 3}')) as provider:
        assert play(provider, result_model=Parcel).output == '{"order":3}'


@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")
def test_a_pause_of_claude_continues_with_the_same_blocks(play: Any) -> None:
    def search(id: str) -> dict[str, Any]:
        return {"type": "server_tool_use", "id": f"srvtoolu_{id}", "name": "web_search", "input": {"query": id}}

    hit = {"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "ENC"}
    results = [
        {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{id}", "content": [hit]} for id in ("a", "b")
    ]
    paused = [thought("1"), TEXT, search("a"), results[0], search("b")]
    done = [results[1], {"type": "text", "text": "Found."}]
    with Provider(claude(*paused, reason="pause_turn"), claude(*done)) as server:
        run = play(server, "anthropic/claude-sonnet-4-5")
        assert (run.output, echoed(run), len(server.requests)) == ("I look.\nFound.", [], 2), run.error
        user, said = server.requests[1]["messages"]
        assert said["content"] == paused
        again = submit("react/streams", "more", session=run.session_id)
        run_until_idle()
        again.refresh_from_db()
        assert server.requests[2]["messages"][:2] == [user, {"role": "assistant", "content": [*paused, *done]}]
    with Provider(claude(TEXT, search("a"), reason="pause_turn")) as server:
        run = play(server, "anthropic/claude-sonnet-4-5")
        assert (run.output, len(server.requests)) == ("\n".join(["I look."] * 4), 4), run.error
        submit("react/streams", "go on", session=run.session_id)
        run_until_idle()
        assert "server_tool_use" not in str(server.requests[4]["messages"]), "a call without a result ends a request"
