"""Gemini: its signatures come back at their calls, natively and behind an address in OpenAI's format."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.loading import GEMINI, load_litellm
from ravi_django.kernel import RetryPolicy
from ravi_django.kernel.content import ImageBlock
from ravi_django.models import Run
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import Body, Document, Line, Provider, answer, chunk, says
from tests.support.providers.gemini import PLACEHOLDER, call, check_gemini, gemini
from tests.unit.capabilities.llm.conftest import echo

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
SIGNATURE = "CrICAdHtim827fQ+/a/b3" * 5 + "=="
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DONE = gemini({"text": "done"})


@pytest.fixture(autouse=True)
def no_engine(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": None}
    load_litellm()


@tool
def chart() -> ImageBlock:
    """Draw a chart."""
    return ImageBlock(data=PNG, mime_type="image/png", alt="a chart")


def model_at(server: Provider, name: str = "gemini/gemini-3-pro-preview") -> Any:
    base = server.url if name.startswith("gemini/") else f"{server.url}/v1"
    return LLMFactory(name, "a-key-of-the-test", api_base=base, retry=RetryPolicy(max_attempts=1)).build()


def ask(model: Any, message: Any = "hi", session: Any = None, **options: Any) -> Run:
    agent = ReActAgent("gemini", model=model, tools=[echo, chart], system_instructions="Help.", **options)
    run = submit(register(agent, replace=True), message, session=session)
    run_until_idle()
    run.refresh_from_db()
    return run


def test_signatures_come_back_at_their_calls() -> None:
    """Thoughts, texts and parallel calls over two steps and two turns; a call that is made twice."""
    thought, signed = {"text": "I look.", "thought": True}, {"text": "", "thoughtSignature": SIGNATURE + "t"}
    first = [call("echo", SIGNATURE + "1", text="a"), call("echo", text="b"), call("echo", text="b")]
    second = [call("echo", SIGNATURE + "2", text="c")]
    for name, generation, own_ids in (
        ("gemini/gemini-2.5-flash", 2, False),
        ("gemini/gemini-3-pro-preview", 3, False),
        ("gemini/gemini-3.6-flash", 3, True),
    ):
        steps: list[list[Body]] = [first, second]
        if own_ids:
            steps = [
                [{**part, "functionCall": part["functionCall"] | {"id": f"{step}{at}"}} for at, part in enumerate(one)]
                for step, one in enumerate(steps)
            ]
        answers: list[list[Line]] = [
            gemini(thought, {"text": "So."}, *steps[0], signed),
            gemini(*steps[1]),
            DONE,
        ]
        check = check_gemini([part for step in steps for part in step], model=generation)
        with case(name), Provider(*answers, checker=check) as server:
            run = ask(model_at(server, name))
            again = ask(model_at(server, name), "more", run.session_id)
            assert (run.output, again.output, server.refused) == ("done", "done", []), run.error or again.error
            turn = server.requests[-1]["contents"][1]["parts"]
        assert [part.get("text") or part["function_call"]["args"]["text"] for part in turn] == ["So.", "a", "b", "b"]
        assert "I look." not in str(server.requests)


def test_a_signature_that_is_refused_does_not_end_the_conversation() -> None:
    """After a change of the server: litellm itself sends Google's placeholder then."""

    def check(request: Body) -> str | None:
        return "Corrupted thought signature." if SIGNATURE in str(request) else None

    busy = Document({}, 500)  # a refused request takes an answer of the stand-in too
    with Provider(gemini(call("echo", SIGNATURE, text="a")), busy, DONE, checker=check) as server:
        run = ask(model_at(server))
    assert (run.output, len(server.requests)) == ("done", 3), run.error
    assert PLACEHOLDER in str(server.requests[2])


def test_a_prompt_that_is_too_long_is_named_as_that() -> None:
    words = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
    too_long = Document({"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}, 400)
    with Provider(too_long) as server:
        assert ask(model_at(server)).error["type"] == "ContextWindowExceededError"


def google(signature: str) -> Body:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def piece(index: int, id: str, text: str, **extra: Any) -> str:
    function = {"name": "echo", "arguments": f'{{"text": "{text}"}}'}
    return chunk({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function, **extra}]})


def test_signatures_come_back_behind_an_address_in_openais_format() -> None:
    """Google's own address, and a proxy of litellm, which has them in other fields. Nobody else gets them."""
    long = "call_0123456789__thought__" + SIGNATURE
    for name, id, extra in (
        ("google", "function-call-1", google(SIGNATURE)),
        ("proxy", long, {"provider_specific_fields": {"thought_signature": SIGNATURE}}),
    ):
        first = answer(piece(0, id, "a", **extra), piece(1, "c2", "b"), reason="tool_calls")
        with (
            case(name),
            Provider(first, answer(piece(0, "c3", "c", **extra), reason="tool_calls"), says("done")) as server,
            Provider(says("other")) as elsewhere,
        ):
            run = ask(model_at(server, "openai/gemini-3-pro-preview"))
            other = ask(model_at(elsewhere, "openai/gpt-4o"), "more", run.session_id)
            back = ask(model_at(server, "openai/gemini-3-pro-preview"), "more", run.session_id)
            assert [run.output, other.output, back.output] == ["done", "other", "done"]
            sent = server.requests[-1]["messages"]
        calls = [one for turn in sent for one in turn.get("tool_calls") or ()]
        assert [{key: one.get(key) for key in extra} for one in calls] == [extra, dict.fromkeys(extra), extra]
        assert SIGNATURE not in str(elsewhere.requests)


def test_litellm_still_drops_the_second_of_two_equal_calls() -> None:
    """If this fails, `loading` needs its own function no more."""
    load_litellm()
    assert "check_if_part_exists_in_parts(" in inspect.getsource(
        sys.modules[GEMINI].gemini_convert_messages_with_history
    )
