"""What a provider's refusal becomes, through the real litellm."""

import socket
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.errors import redact, translate_error
from ravi_django.kernel import KernelError, ModelError, TransientError
from tests.support.cases import case
from tests.support.openai_server import OpenAIServer, Reply

KEY = "sk-never-show-me-0123456789"


@pytest.mark.usefixtures("clients")
async def test_which_refusals_are_worth_a_retry(model_at, events_of):
    # transient
    for status, name in [
        (408, "Timeout"), (409, "APIError"), (429, "RateLimitError"), (500, "InternalServerError"),
        (502, "BadGatewayError"), (503, "ServiceUnavailableError"),
    ]:  # fmt: skip
        with case(status, name):
            reply = Reply(status=status, text=f"come back later than {status}", headers={"retry-after": "7"})
            with OpenAIServer(reply) as server, pytest.raises(TransientError) as caught:
                await events_of(model_at(server))
            assert str(caught.value) == f"come back later than {status}"
            assert (caught.value.type, caught.value.retry_after) == (name, 7.0)
            assert len(server.requests) == 1, "retrying is the runtime's"
    # permanent
    for status, name in [
        (400, "BadRequestError"), (401, "AuthenticationError"), (404, "NotFoundError"), (422, "BadRequestError"),
    ]:  # fmt: skip
        with case(status, name):
            with (
                OpenAIServer(Reply(status=status, text="that will not do")) as server,
                pytest.raises(ModelError) as caught,
            ):
                await events_of(model_at(server))
            assert str(caught.value) == "that will not do"
            assert (caught.value.type, caught.value.status) == (name, status)
    # an empty account is not worth a retry
    reply = Reply(status=429, text="You exceeded your current quota.", error_code="insufficient_quota")
    with OpenAIServer(reply) as server, pytest.raises(ModelError, match="quota"):
        await events_of(model_at(server))

    words = "This model's maximum context length is 8192 tokens."
    reply = Reply(status=400, text=words, error_code="context_length_exceeded")
    with OpenAIServer(reply) as server, pytest.raises(ModelError) as caught:
        await events_of(model_at(server))
    assert caught.value.type == "ContextWindowExceededError"
    assert words in str(caught.value)


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize(("name", "variable"), [
    ("gpt-4o-mini", "OPENAI_API_KEY"), ("gemini/gemini-2.0-flash", "GEMINI_API_KEY"),
    ("claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
])  # fmt: skip
@pytest.mark.parametrize("given", [None, ""], ids=["unset", "empty"])
async def test_no_key_is_permanent_and_names_its_variable(events_of, monkeypatch, name, variable, given):
    for key in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    if given is not None:
        monkeypatch.setenv(variable, given)
    with pytest.raises(ModelError) as caught:
        await events_of(LLMFactory(name).build())
    assert caught.value.type == "MissingKeyError"
    assert f"model {name} has no API key: set" in str(caught.value) and variable in str(caught.value)


@pytest.mark.usefixtures("clients")
async def test_a_key_is_named_by_its_variable_and_never_shown(events_of, monkeypatch, model_at):
    # a key that the provider refuses for none names its variable
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
    with OpenAIServer(Reply(status=401, text="Unauthorized")) as server, pytest.raises(ModelError) as caught:
        await events_of(LLMFactory("mistral/mistral-small-latest", api_base=server.base_url).build())
    assert "has no API key: set MISTRAL_API_KEY" in str(caught.value)
    # the key is redacted and not in the traceback
    reply = Reply(status=401, text=f"Incorrect API key provided: {KEY}.")
    with OpenAIServer(reply) as server, pytest.raises(ModelError) as caught:
        await events_of(model_at(server))
    assert str(caught.value) == "Incorrect API key provided: [key]."
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("clients")
async def test_an_answer_without_content(model_at, events_of):
    for reply in [
        Reply(text=""), Reply(text="", finish_reason="length"), Reply(text="", finish_reason="content_filter"),
        Reply(text="", tool_calls=(("add", {}),)),
    ]:  # fmt: skip
        with case(reply):
            with OpenAIServer(reply) as server:
                *_, response = await events_of(model_at(server))
            assert response.finish_reason == reply.finish_reason or not reply.finish_reason
    # a stream that just ends is no answer
    with OpenAIServer(Reply(text="half an answer", cut_after=2)) as server, pytest.raises(TransientError) as caught:
        await events_of(model_at(server))
    assert caught.value.type == "StreamCut"


@pytest.mark.usefixtures("clients")
async def test_nobody_answers(model_at, events_of):
    # timeout
    for server_settings in [{"delay": 60}, {"token_delay": 60}]:
        server = OpenAIServer(Reply(text="a b c"), **server_settings)
        with case(server_settings), server, pytest.raises(TransientError):
            await events_of(model_at(server, timeout=0.3))
    # nobody listens
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = OpenAIServer(port=taken.getsockname()[1])
    with pytest.raises(TransientError):
        await events_of(model_at(server))
    # unknown provider
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


def test_how_an_error_is_translated():
    # retry after as a date
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    translated = translate_error(FakeError("x", status_code=429, response=FakeResponse(retry_after=when)))
    assert 50 < translated.retry_after <= 60
    # retry after that says nothing
    for value in ["soon", "", "-"]:
        with case(value):
            translated = translate_error(FakeError("x", status_code=429, response=FakeResponse(retry_after=value)))
            assert translated.retry_after is None
    # the cause of a broken stream is told
    wrapped = FakeError("wrapped", original_exception=FakeError("the real words", status_code=400))
    translated = translate_error(wrapped)
    assert isinstance(translated, ModelError)
    assert str(translated) == "the real words"
    # an error event inside a stream
    for kind, expected in [("server_error", TransientError), ("invalid_request_error", ModelError)]:
        with case(kind, expected):
            error = APIError("overloaded", body={"message": "overloaded", "type": kind})
            assert type(translate_error(error)) is expected
    # faults of the network are transient
    for error in [TimeoutError(), ConnectionResetError("reset")]:
        with case(error):
            translated = translate_error(error)
            assert isinstance(translated, TransientError)
            assert str(translated), "an error says something"
    # a fault of our own is permanent
    translated: KernelError = translate_error(KeyError("choices"))
    assert isinstance(translated, ModelError)
    assert translated.type == "KeyError"


def test_redaction(monkeypatch):
    monkeypatch.setenv("SOMEBODY_API_KEY", "plain-secret")
    text = redact("plain-secret given-one Bearer abcdefghijk sk-proj-ABCDEFGHIJKLMNOP fine", ["given-one"])
    assert text == "[key] [key] Bearer [key] [key] fine"
    # a key is taken out before the words are cut
    for before in range(1_980, 2_001, 4):
        with case(before):
            translated = translate_error(FakeError("x" * before + " " + KEY), secrets=[KEY])
            assert "sk" not in str(translated)
            assert len(str(translated)) <= 2_000
