"""OpenAI's Responses: reasoning goes back as it came, in its order, to the server and key that made it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.litellm_model import LiteLLMModel
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import ChatMessage, InvalidInputError, ReasoningDelta, RetryPolicy, TransientError
from ravi_django.models import Run
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import Document, Provider, check_claude, check_responses, claude, event, responses
from tests.unit.capabilities.llm.conftest import echo
from tests.unit.capabilities.llm.test_stream_kinds import TEXT, thought, use

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]


@pytest.fixture
def no_engine(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": None}


class Parcel(BaseModel):
    order: int


def rs(id: str, *summary: str) -> dict[str, Any]:
    texts = [{"type": "summary_text", "text": text} for text in summary]
    return {"id": f"rs_{id}", "type": "reasoning", "summary": texts, "encrypted_content": f"sealed-{id}"}


def fc(id: str) -> dict[str, Any]:
    call = {"call_id": f"call_{id}", "name": "echo", "arguments": f'{{ "text":"{id}"}}', "status": "completed"}
    return {"id": f"fc_{id}", "type": "function_call", **call}


def msg(text: str, kind: str = "output_text") -> dict[str, Any]:
    part = {"type": kind, "refusal" if kind == "refusal" else "text": text}
    return {"id": "msg", "type": "message", "role": "assistant", "content": [part]}


def model_at(server: Provider, name: str = "openai/gpt-5", key: str = "a-key-of-the-test", **options: Any) -> Any:
    base = server.url if name.startswith("anthropic") else f"{server.url}/v1"
    options = {"dialect": "responses"} | options if name.startswith("openai") else options
    return LLMFactory(name, key, api_base=base, retry=RetryPolicy(max_attempts=1), **options).build()


def ask(model: Any, text: str = "hi", session: Any = None, **options: Any) -> Run:
    run = submit(
        register(ReActAgent("items", model=model, tools=[echo], **options), replace=True), text, session=session
    )
    run_until_idle()
    run.refresh_from_db()
    return run


def test_reasoning_stays_where_it_was_over_two_turns(no_engine: None) -> None:
    first, second = [rs("1", "I look.", "Twice."), fc("a"), rs("2"), fc("b")], [rs("3", "So."), msg("done")]
    said = [*first, *second]
    with Provider(responses(*first), responses(*second), checker=check_responses(said)) as server:
        model = model_at(server)
        run = ask(model, system_instructions="Help.")
        again = ask(model, "more", run.session_id, system_instructions="Help.")
        requests, refused = server.requests, server.refused
    assert (run.output, again.output, refused) == ("done", "done", []), (run.error, again.error)
    body = requests[-1]
    kinds = [item["type"] for item in body["input"]]
    outputs = ["function_call_output"] * 2
    calls = ["reasoning", "function_call"]
    assert kinds == ["message", *calls, *calls, *outputs, "reasoning", "message", "message"]
    assert [item for item in body["input"] if item["type"] == "reasoning"] == [
        rs("1", "I look.", "Twice."),
        rs("2"),
        rs("3", "So."),
    ]
    assert body["input"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert (body["reasoning"], body["tools"][0]["name"]) == ({"summary": "auto"}, "echo")
    assert body["instructions"].startswith("Help.")


@pytest.mark.asyncio
async def test_a_summary_is_streamed_and_the_tokens_are_paid(events_of: Any, clients: None, site_callback: Any) -> None:
    with Provider(responses(rs("1", "I look.", "Twice."), msg("Hel\u00e9"))) as server:
        *deltas, answer = await events_of(model_at(server))
        # litellm itself lets no model stream that it does not list.
        *_, other = await events_of(model_at(server, "openai/of-another-maker"))
        assert server.requests[-1]["stream"] is True
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "I look.\n\nTwice."
    assert (answer.text, answer.finish_reason, answer.model) == ("Hel\u00e9", "stop", "gpt-5")
    usage = answer.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens) == (100, 40, 20, 15)
    assert answer.cost == pytest.approx(60 * 1.25e-6 + 40 * 1.25e-7 + 20 * 1e-5)
    assert (other.text, site_callback) == ("Hel\u00e9", ["Hel\u00e9"] * 2)


@pytest.mark.asyncio
async def test_how_an_answer_ends(events_of: Any, clients: None) -> None:
    for name, stream, reason, text in (
        ("cut", responses(msg("so"), status="incomplete", why="max_output_tokens"), "length", "so"),
        ("filter", responses(msg("so"), status="incomplete", why="content_filter"), "content_filter", "so"),
        ("refusal", responses(rs("1"), msg("I will not.", "refusal")), "refusal", "I will not."),
        ("document", Document({"object": "response", "status": "completed", "output": [msg("so")]}), "stop", "so"),
    ):
        with case(name), Provider(stream) as server:
            *_, answer = await events_of(model_at(server))
        assert (answer.finish_reason, answer.text) == (reason, text)
    failed = event("response.failed", response={"error": {"code": "server_error", "message": "it broke"}})
    late = event("error", code="rate_limit_exceeded", message="too many")
    for name, stream, error in (
        ("failed", [failed], "it broke"),
        ("error", [late], "too many"),
        ("cut off", responses(msg("so"))[:-1], "ended before"),
    ):
        with case(name), Provider(stream) as server, pytest.raises(TransientError, match=error):
            await events_of(model_at(server))


def test_reasoning_goes_to_the_family_and_the_key_that_made_it(no_engine: None) -> None:
    """A fallback from Claude to Responses and back, then another key."""
    thinks = [thought("1"), use("toolu_1")]
    items = [[rs("1"), fc("a")], [rs("2"), msg("done")], [msg("new")]]
    busy = Document({"error": {"type": "overloaded_error", "message": "later"}}, 529)
    answers = claude(*thinks, reason="tool_use"), busy, busy, claude(TEXT)
    check = check_responses([item for turn in items for item in turn])
    with (
        Provider(*answers, checker=check_claude([thinks])) as one,
        Provider(*(responses(*turn) for turn in items), checker=check) as two,
    ):
        chain = LLMFactory("anthropic/claude-sonnet-4-5", "a-key-of-the-test", fallbacks=["openai/gpt-5"]).build()
        chain.models = (model_at(one, "anthropic/claude-sonnet-4-5"), model_at(two))
        first = ask(chain)
        assert (first.output, one.refused, two.refused) == ("done", [], []), first.error
        assert "sealed" not in str(one.requests) and "signed" not in str(two.requests)
        assert "sealed-1" in str(two.requests[1])
        back = ask(model_at(one, "anthropic/claude-sonnet-4-5"), "more", first.session_id)
        assert (back.output, one.refused) == ("I look.", [])
        other = ask(model_at(two, key="another-key-of-the-test"), "more", first.session_id)
        assert (other.output, two.refused, "sealed" in str(two.requests[-1])) == ("new", [], False)


def test_a_refused_signature_is_left_out_once(no_engine: None) -> None:

    def check(word: str, message: str) -> Any:
        return lambda request: message if word in str(request) else None

    call, done = responses(rs("1"), fc("a")), responses(msg("done"))
    thinks = claude(thought("1"), use("toolu_1"), reason="tool_use")
    busy = Document({}, 500)  # a refused request takes an answer of the stand-in too
    for model, answers, word, message, output in (
        ("openai/gpt-5", (call, busy, done), "sealed-1", "The encrypted content could not be verified", "done"),
        ("openai/gpt-5", (busy, call, done), "'summary': 'auto'", "Unsupported parameter: 'reasoning.summary'", "done"),
        ("anthropic/claude-sonnet-4-5", (thinks, busy, claude(TEXT)), "signed", "Invalid `signature`", "I look."),
    ):
        with case(word), Provider(*answers, checker=check(word, message)) as server:
            run = ask(model_at(server, model), base_options={"reasoning_effort": "low"})
            assert (run.output, server.refused) == (output, [message]), run.error
            assert (len(server.requests), "thinking" in server.requests[2]) == (3, False)
            if "summary" in word:  # only this model object knows it
                continue
            again = ask(model_at(server, model), "more", run.session_id, base_options={"reasoning_effort": "low"})
            assert (again.output, len(server.requests)) == (output, 4), "the conversation knows it, in any process"
            assert server.requests[3].keys() & {"thinking", "reasoning"}, "of a new turn there may be thoughts"


@pytest.mark.asyncio
async def test_reasoning_that_led_to_nothing_is_not_sent(events_of: Any, clients: None) -> None:
    cut = responses(rs("1"), status="incomplete", why="max_output_tokens")
    with Provider(cut, responses(msg("done"))) as server:
        *_, first = await events_of(model_at(server))
        assert first.content[0].signature == "sealed-1"
        user = ChatMessage.of("user", "hi")
        await events_of(model_at(server), [user, first.message, user])
    assert [item["type"] for item in server.requests[1]["input"]] == ["message", "message"]


def test_a_typed_result_beside_tools(no_engine: None) -> None:
    with Provider(responses(rs("1"), msg('{"order": 3}'))) as server:
        run = ask(model_at(server), result_model=Parcel, base_options={"reasoning_effort": "low", "max_tokens": 99})
    body = server.requests[0]
    assert run.output == '{"order":3}', run.error
    assert (body["text"]["format"]["type"], body["text"]["format"]["strict"]) == ("json_schema", True)
    assert (body["max_output_tokens"], body["reasoning"]) == (99, {"effort": "low", "summary": "auto"})


def test_which_models_are_called_by_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "USE_LITELLM_PROXY"):
        monkeypatch.delenv(name, raising=False)
    litellm = load_litellm()
    for name, options, has_items in (
        ("gpt-5", {}, True),
        ("openai/o3", {}, True),
        ("gpt-4o", {}, False),
        ("gpt-5-pro", {}, False),
        ("azure/gpt-5", {}, False),
        ("azure/gpt-5", {"dialect": "responses"}, True),
        ("gpt-5", {"dialect": "chat"}, False),
        ("gpt-5", {"api_base": "http://127.0.0.1/v1"}, False),
        ("anthropic/claude-sonnet-4-5", {}, False),
    ):
        assert bool(LiteLLMModel(name, **options)._form_of(litellm).endpoint) is has_items, (name, options)
    with pytest.raises(InvalidInputError, match="not 'mistral/"):
        LiteLLMModel("mistral/mistral-large-latest", dialect="responses")._form_of(litellm)
    with pytest.raises(InvalidInputError, match="not 'items'"):
        LLMFactory("gpt-5", dialect="items").build()
