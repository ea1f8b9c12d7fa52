"""Several models behind one name."""

import asyncio
from typing import Any

import pytest

from ravi_django.calls.llm import FallbackModel, LiteLLMModel, LLMFactory
from ravi_django.kernel import (
    CancellationError,
    ChatMessage,
    InvalidInputError,
    ModelError,
    ModelResponse,
    RetryPolicy,
    StreamRestart,
    TextDelta,
    TransientError,
)
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import case
from tests.support.openai_server import OpenAIServer, Reply

BUSY = TransientError("slow down", type="RateLimitError", status=429)
FULL = ModelError("too many tokens", type="ContextWindowExceededError", status=400)
NO_KEY = ModelError("no such key", type="AuthenticationError", status=401)
BAD = ModelError("no such field", type="BadRequestError", status=400)


class Stuttering(ScriptedModel):
    """Streams its text, then fails."""

    def __init__(self, text: str, error: Exception, **options: Any) -> None:
        super().__init__(text, **options)
        self.error = error

    async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        async for event in super().stream(messages, options, meta):
            if isinstance(event, ModelResponse):
                raise self.error
            yield event


def model(say: Any, name: str = "second") -> ScriptedModel:
    return ScriptedModel([say], name=name)


async def test_which_errors_are_passed_on(events_of):
    # the next one answers when one fails
    for error in [BUSY, FULL, NO_KEY]:
        with case(error):
            first = model(error, "first")
            restart, delta, response = await events_of(FallbackModel([first, model("hello")]))
            assert (restart, delta) == (StreamRestart(model="second", error_type=error.type), TextDelta(text="hello"))
            assert (response.text, response.model, len(first.calls)) == ("hello", "second", 1)
    # the first one answers alone while it can
    second = model("not asked")
    *_, response = await events_of(FallbackModel([model("hello", "first"), second]))
    assert (response.text, response.model, second.calls) == ("hello", "first", [])
    # the callers own fault is not passed on
    second = model("not asked")
    with pytest.raises(ModelError, match="no such field"):
        await events_of(FallbackModel([model(BAD, "first"), second]))
    assert second.calls == []
    # but for those that are named
    for named in ["BadRequestError", 400]:
        with case(named):
            *_, response = await events_of(FallbackModel([model(BAD, "first"), model("hello")], fallback_on=[named]))
            assert response.text == "hello"
    # a cancelled run asks nobody else
    second = model("not asked")
    with pytest.raises(CancellationError):
        await events_of(FallbackModel([model(CancellationError(), "first"), second]))
    assert second.calls == []


async def test_a_partial_answer_is_begun_anew(events_of):
    first = Stuttering("half an", BUSY, name="first")
    events = await events_of(FallbackModel([first, model("hello")]))
    assert [type(event) for event in events] == [TextDelta, StreamRestart, TextDelta, ModelResponse]
    assert events[-1].text == "hello"
    assert events[-1].usage.total == 0, "what the first one used is not known"

    # a model that ends without a response has failed
    class Empty(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            yield TextDelta(text="well")

    *_, response = await events_of(FallbackModel([Empty("", name="empty"), model("hello")]))
    assert response.text == "hello"


async def test_the_error_when_all_fail(events_of):
    for errors in [(BUSY, NO_KEY), (NO_KEY, BUSY)]:
        with case(errors):
            first, second = (model(error, name) for error, name in zip(errors, ("first", "second"), strict=True))
            with pytest.raises(TransientError) as caught:
                await events_of(FallbackModel([first, second]))
            assert caught.value is BUSY
    # of several the one that is over soonest
    long = TransientError("later", retry_after=50)
    short = TransientError("soon", retry_after=5)
    with pytest.raises(TransientError) as caught:
        await events_of(FallbackModel([model(long), model(short), model(long)]))
    assert caught.value is short
    # what the policy gives up on is no reason to wait
    policy = RetryPolicy(give_up_on={429})
    with pytest.raises(ModelError, match=r"first: slow down; second: no such key"):
        await events_of(FallbackModel([model(BUSY, "first"), model(NO_KEY)], retry=policy))
    # the error of all says who failed how
    with pytest.raises(ModelError, match=r"first: no such key; second: too many tokens") as caught:
        await events_of(FallbackModel([model(NO_KEY, "first"), model(FULL)]))
    assert (caught.value.type, caught.value.status) == ("AuthenticationError", 401)


async def test_a_model_that_takes_too_long_is_given_up(events_of, monkeypatch):
    # a model that says nothing is given up
    slow = ScriptedModel("too late", name="slow", delay=60)
    async with asyncio.timeout(30):
        *_, response = await events_of(FallbackModel([slow, model("hello")], fallback_after=0.05))
    assert response.text == "hello"
    async with asyncio.timeout(30):
        *_, restart, delta, response = await events_of(
            FallbackModel([Dripping("", name="drips"), model("hello")], fallback_total=0.1)
        )
    assert (restart, delta) == (StreamRestart(model="second", error_type="Timeout"), TextDelta(text="hello"))
    assert response.text == "hello"
    # the last one is waited for
    slow = ScriptedModel("at last", name="slow", delay=0.2)
    *_, response = await events_of(FallbackModel([model(BUSY), slow], fallback_after=0.01))
    assert response.text == "at last"
    # what the caller waits for is enough for the next one
    for first in [Dripping("", name="drips"), ScriptedModel("late", name="slow", delay=60)]:
        with case(first):
            world.patch(monkeypatch, "fallback_limits", lambda: (0.2, 0.3))
            async with asyncio.timeout(30):
                *_, response = await events_of(FallbackModel([first, model("hello")]))
            assert response.text == "hello"
    # a fallback among the models has time for each of its own
    world.patch(monkeypatch, "fallback_limits", lambda: (0.4, 0.4))
    inner = FallbackModel([Dripping("", name="drips"), ScriptedModel("hello", name="slow", delay=0.2)])
    *_, response = await events_of(FallbackModel([inner, model("not asked")]))
    assert response.text == "hello"


class Dripping(ScriptedModel):
    """A word now and then, for ever."""

    async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        while True:
            yield TextDelta(text="drip ")
            await asyncio.sleep(0.01)


class Knowing(ScriptedModel):
    def __init__(self, window: int | None, *, schema: bool = True) -> None:
        super().__init__("hi")
        self.window, self.schema = window, schema

    async def context_window(self) -> int | None:
        return self.window

    async def count_tokens(self, messages: Any) -> int:
        return 7

    async def supports_schema(self) -> bool:
        return self.schema


async def test_it_knows_what_holds_for_all_of_them():
    several = FallbackModel([Knowing(100), Knowing(None), Knowing(50, schema=False)])
    assert await several.context_window() == 50
    assert await several.count_tokens([ChatMessage.of("user", "hi")]) == 7
    assert await several.supports_schema() is False
    assert await FallbackModel([Knowing(None)]).supports_schema() is True
    assert await FallbackModel([Knowing(1), ScriptedModel("x")]).supports_schema() is False


async def test_the_factory_builds_the_list():
    own = ScriptedModel("own", name="own")
    policy = RetryPolicy(max_attempts=2)
    factory = LLMFactory(
        "gpt-4o", "sk-first-0123456789",
        fallbacks=["anthropic/claude-sonnet-4-5", LLMFactory("openai/other", api_base="http://x/v1"), own],
        retry=policy, temperature=0.5, api_base="http://first/v1",
        extra_headers={"Authorization": "Bearer first-0123456789"}
    )  # fmt: skip
    built = factory.build()
    assert isinstance(built, FallbackModel)
    assert (built.name, built.retry) == ("gpt-4o", policy)
    first, second, third, fourth = built.models
    assert [member.name for member in built.models] == ["gpt-4o", "anthropic/claude-sonnet-4-5", "openai/other", "own"]
    assert isinstance(second, LiteLLMModel) and second.params == {"temperature": 0.5}
    assert second._api_key is None and second._api_base is None and second._secret_params == {}
    assert isinstance(first, LiteLLMModel) and first._secret_params
    assert isinstance(third, LiteLLMModel) and fourth is own
    # what is no model is refused
    for wrong in [[42], [None], [""]]:
        with case(wrong):
            with pytest.raises(InvalidInputError) as caught:
                LLMFactory("gpt-4o", fallbacks=wrong).build()
            assert caught.value.field in ("fallbacks", "model")


async def test_through_litellm(clients, model_at, events_of):
    busy = OpenAIServer(Reply(status=503, text="down for an hour", headers={"retry-after": "3600"}))
    with busy, OpenAIServer(Reply(text="hello from the other")) as other:
        factory = LLMFactory("openai/gpt-4o", "k1", api_base=busy.base_url, fallbacks=[model_at(other, "openai/b")])
        *_, response = await events_of(factory.build())
    assert (response.text, response.model) == ("hello from the other", "b")
    assert len(busy.requests) == len(other.requests) == 1
