"""What a provider's refusal becomes, through the real litellm."""

from __future__ import annotations

import socket
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from ravi_django.capabilities.llm import LLMFactory
from ravi_django.capabilities.llm.errors import redact, translate_error
from ravi_django.kernel import KernelError, ModelError, TransientError
from tests.support.openai_server import OpenAIServer, Reply

KEY = "sk-never-show-me-0123456789"


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
class TestThroughLitellm:
    @pytest.mark.parametrize(
        ("status", "name"),
        [
            (408, "Timeout"),
            (409, "APIError"),
            (429, "RateLimitError"),
            (500, "InternalServerError"),
            (502, "BadGatewayError"),
            (503, "ServiceUnavailableError"),
        ],
    )
    async def test_transient(self, model_at, events_of, status, name):
        reply = Reply(status=status, text=f"come back later than {status}", headers={"retry-after": "7"})
        with OpenAIServer(reply) as server, pytest.raises(TransientError) as caught:
            await events_of(model_at(server))

        assert str(caught.value) == f"come back later than {status}"
        assert (caught.value.type, caught.value.retry_after) == (name, 7.0)
        assert len(server.requests) == 1, "retrying is the runtime's"

    @pytest.mark.parametrize(
        ("status", "name"),
        [(400, "BadRequestError"), (401, "AuthenticationError"), (404, "NotFoundError"), (422, "BadRequestError")],
    )
    async def test_permanent(self, model_at, events_of, status, name):
        with OpenAIServer(Reply(status=status, text="that will not do")) as server, pytest.raises(ModelError) as caught:
            await events_of(model_at(server))

        assert str(caught.value) == "that will not do"
        assert (caught.value.type, caught.value.status) == (name, status)

    @pytest.mark.parametrize(
        ("name", "variable"),
        [
            ("gpt-4o-mini", "OPENAI_API_KEY"),
            ("gemini/gemini-2.0-flash", "GEMINI_API_KEY"),
            ("claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ],
    )
    @pytest.mark.parametrize("given", [None, ""], ids=["unset", "empty"])
    async def test_no_key_is_permanent_and_names_its_variable(self, events_of, monkeypatch, name, variable, given):
        for key in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.delenv(key, raising=False)
        if given is not None:
            monkeypatch.setenv(variable, given)

        with pytest.raises(ModelError) as caught:
            await events_of(LLMFactory(name).build())

        assert caught.value.type == "MissingKeyError"
        assert f"model {name} has no API key: set" in str(caught.value) and variable in str(caught.value)

    async def test_a_key_that_the_provider_refuses_for_none_names_its_variable(self, events_of, monkeypatch):
        monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
        with OpenAIServer(Reply(status=401, text="Unauthorized")) as server, pytest.raises(ModelError) as caught:
            await events_of(LLMFactory("mistral/mistral-small-latest", api_base=server.base_url).build())

        assert "has no API key: set MISTRAL_API_KEY" in str(caught.value)

    async def test_context_window(self, model_at, events_of):
        words = "This model's maximum context length is 8192 tokens."
        reply = Reply(status=400, text=words, error_code="context_length_exceeded")
        with OpenAIServer(reply) as server, pytest.raises(ModelError) as caught:
            await events_of(model_at(server))

        assert caught.value.type == "ContextWindowExceededError"
        assert words in str(caught.value)

    async def test_an_empty_account_is_not_worth_a_retry(self, model_at, events_of):
        reply = Reply(status=429, text="You exceeded your current quota.", error_code="insufficient_quota")
        with OpenAIServer(reply) as server, pytest.raises(ModelError, match="quota"):
            await events_of(model_at(server))

    async def test_the_key_is_redacted_and_not_in_the_traceback(self, model_at, events_of):
        reply = Reply(status=401, text=f"Incorrect API key provided: {KEY}.")
        with OpenAIServer(reply) as server, pytest.raises(ModelError) as caught:
            await events_of(model_at(server))

        assert str(caught.value) == "Incorrect API key provided: [key]."
        assert KEY not in "".join(traceback.format_exception(caught.value))

    async def test_an_empty_answer_is_none(self, model_at, events_of):
        with OpenAIServer(Reply(text="")) as server, pytest.raises(TransientError) as caught:
            await events_of(model_at(server))

        assert caught.value.type == "EmptyResponse"

    @pytest.mark.parametrize(
        "reply",
        [
            Reply(text="", finish_reason="length"),
            Reply(text="", finish_reason="content_filter"),
            Reply(text="", reasoning="hm"),
            Reply(text="", tool_calls=(("add", {}),)),
        ],
    )
    async def test_but_for_one_that_says_why_or_has_something(self, model_at, events_of, reply):
        with OpenAIServer(reply) as server:
            *_, response = await events_of(model_at(server))

        assert response.finish_reason == reply.finish_reason or not reply.finish_reason

    async def test_a_stream_that_just_ends_is_no_answer(self, model_at, events_of):
        with OpenAIServer(Reply(text="half an answer", cut_after=2)) as server, pytest.raises(TransientError) as caught:
            await events_of(model_at(server))

        assert caught.value.type == "StreamCut"

    async def test_a_stream_that_just_ends_under_litellms_wrapper(self, model_at, events_of, site_callback):
        with OpenAIServer(Reply(text="half an answer", cut_after=2)) as server, pytest.raises(TransientError) as caught:
            await events_of(model_at(server))

        assert caught.value.type in ("StreamCut", "APIConnectionError")  # the latter litellm's own, since 1.110

    @pytest.mark.parametrize("server_settings", [{"delay": 60}, {"token_delay": 60}])
    async def test_timeout(self, model_at, events_of, server_settings):
        with OpenAIServer(Reply(text="a b c"), **server_settings) as server, pytest.raises(TransientError):
            await events_of(model_at(server, timeout=0.3))

    async def test_nobody_listens(self, model_at, events_of):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = OpenAIServer(port=taken.getsockname()[1])
        with pytest.raises(TransientError):
            await events_of(model_at(server))

    async def test_unknown_provider(self, events_of, model_at):
        with pytest.raises(ModelError, match="provider"):
            await events_of(model_at(OpenAIServer(), "no-such-model-anywhere"))


class FakeError(Exception):
    def __init__(self, message: str = "", **fields: object) -> None:
        self.__dict__.update(fields)
        super().__init__(message)


class FakeResponse:
    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class APIError(FakeError):
    """Named like what the OpenAI client raises for an error event inside a stream."""


def test_retry_after_as_a_date():
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    translated = translate_error(FakeError("x", status_code=429, response=FakeResponse(retry_after=when)))

    assert 50 < translated.retry_after <= 60


@pytest.mark.parametrize("value", ["soon", "", "-"])
def test_retry_after_that_says_nothing(value):
    translated = translate_error(FakeError("x", status_code=429, response=FakeResponse(retry_after=value)))

    assert translated.retry_after is None


def test_the_cause_of_a_broken_stream_is_told():
    wrapped = FakeError("wrapped", original_exception=FakeError("the real words", status_code=400))

    translated = translate_error(wrapped)

    assert isinstance(translated, ModelError)
    assert str(translated) == "the real words"


@pytest.mark.parametrize(
    ("kind", "expected"), [("server_error", TransientError), ("invalid_request_error", ModelError)]
)
def test_an_error_event_inside_a_stream(kind, expected):
    error = APIError("overloaded", body={"message": "overloaded", "type": kind})

    assert type(translate_error(error)) is expected


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError("reset")])
def test_faults_of_the_network_are_transient(error):
    translated = translate_error(error)

    assert isinstance(translated, TransientError)
    assert str(translated), "an error says something"


def test_a_fault_of_our_own_is_permanent():
    translated: KernelError = translate_error(KeyError("choices"))

    assert isinstance(translated, ModelError)
    assert translated.type == "KeyError"


@pytest.mark.parametrize("before", range(1_980, 2_001, 4))
def test_a_key_is_taken_out_before_the_words_are_cut(before):
    translated = translate_error(FakeError("x" * before + " " + KEY), secrets=[KEY])

    assert "sk" not in str(translated)
    assert len(str(translated)) <= 2_000


def test_redaction(monkeypatch):
    monkeypatch.setenv("SOMEBODY_API_KEY", "plain-secret")

    text = redact("plain-secret given-one Bearer abcdefghijk sk-proj-ABCDEFGHIJKLMNOP fine", ["given-one"])

    assert text == "[key] [key] Bearer [key] [key] fine"
