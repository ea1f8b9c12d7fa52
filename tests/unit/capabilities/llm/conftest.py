from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory, close_clients
from ravi_django.calls.llm.litellm_stream import CALLBACK_LISTS
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import ChatMessage, ChatModel, GenerationOptions, ModelEvent, RetryPolicy, RunMeta, StreamAlive
from ravi_django.models import Run
from ravi_django.testing import run_until_idle
from tests.support.openai_server import OpenAIServer
from tests.support.providers import Provider

ONCE = RetryPolicy(max_attempts=1)
KEY = "sk-never-show-me-0123456789"


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[None]:
    """Closes what the test's calls left open on its loop."""
    yield
    await close_clients()


@pytest.fixture
def model_at():
    """A model client for a test server."""

    def build(server: OpenAIServer, name: str = "openai/gpt-4o", **defaults: Any) -> ChatModel:
        return LLMFactory(name, KEY, api_base=server.base_url, **{"timeout": 20, **defaults}).build()

    return build


@pytest.fixture
def events_of():
    """All that a model yields for a conversation; a str is one user message."""

    async def collect(
        model: ChatModel, messages: str | Sequence[ChatMessage] = "hi", **options: Any
    ) -> list[ModelEvent]:
        if isinstance(messages, str):
            messages = [ChatMessage.of("user", messages)]
        stream = model.stream(messages, GenerationOptions(**options), RunMeta(run_id="r1"))
        return [event async for event in stream if not isinstance(event, StreamAlive)]

    return collect


@pytest.fixture
def site_callback(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A site that observes litellm; the answers that it was told of."""
    litellm = load_litellm()
    for name in CALLBACK_LISTS:  # litellm moves entries from list to list: none may leak into other tests
        monkeypatch.setattr(litellm, name, [])
    answers: list[str] = []

    async def on_success(kwargs: Any, response: Any, start: Any, end: Any) -> None:
        answers.append(response.choices[0].message.content)

    litellm.success_callback.append(on_success)
    return answers


@tool
def echo(text: str = "nothing") -> str:
    """Say it again."""
    return text


@pytest.fixture
def begin(settings: Any):
    """`begin(provider, model)`: submit a run to an agent at this provider."""
    load_litellm()  # a first import may take longer than a run may
    settings.RAVI = {**settings.RAVI, "ENGINE": None}

    def begun(
        provider: Provider,
        model: str = "openai/gpt-x",
        retry: RetryPolicy = ONCE,
        key: str = "streams",
        **options: Any,
    ) -> Run:
        base = provider.url if model.startswith("anthropic") else f"{provider.url}/v1"
        client = LLMFactory(model, "a-key-of-the-test", api_base=base, retry=retry).build()
        return submit(register(ReActAgent(key, model=client, tools=[echo], **options), replace=True), "hi")

    return begun


@pytest.fixture
def play(begin: Any):
    """`play(provider, model)`: the run of an agent at this provider."""

    def played(*args: Any, **options: Any) -> Run:
        run: Run = begin(*args, **options)
        run_until_idle()
        run.refresh_from_db()
        return run

    return played
