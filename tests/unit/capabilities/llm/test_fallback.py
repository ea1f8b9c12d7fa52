"""Several models behind one name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ravi_django.capabilities.llm import FallbackModel, LiteLLMModel, LLMFactory
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
from tests.support.openai_server import OpenAIServer, Reply

pytestmark = pytest.mark.asyncio

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


@pytest.mark.parametrize("error", [BUSY, FULL, NO_KEY])
async def test_the_next_one_answers_when_one_fails(events_of, error):
    first = model(error, "first")

    restart, delta, response = await events_of(FallbackModel([first, model("hello")]))

    assert (restart, delta) == (StreamRestart(model="second", error_type=error.type), TextDelta(text="hello"))
    assert (response.text, response.model) == ("hello", "second")
    assert len(first.calls) == 1


async def test_the_first_one_answers_alone_while_it_can(events_of):
    second = model("not asked")

    *_, response = await events_of(FallbackModel([model("hello", "first"), second]))

    assert (response.text, response.model, second.calls) == ("hello", "first", [])


async def test_the_callers_own_fault_is_not_passed_on(events_of):
    second = model("not asked")

    with pytest.raises(ModelError, match="no such field"):
        await events_of(FallbackModel([model(BAD, "first"), second]))

    assert second.calls == []


@pytest.mark.parametrize("named", ["BadRequestError", 400])
async def test_but_for_those_that_are_named(events_of, named):
    *_, response = await events_of(FallbackModel([model(BAD, "first"), model("hello")], fallback_on=[named]))

    assert response.text == "hello"


async def test_a_cancelled_run_asks_nobody_else(events_of):
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


@pytest.mark.parametrize("errors", [(BUSY, NO_KEY), (NO_KEY, BUSY)])
async def test_when_all_fail_a_transient_error_wins(events_of, errors):
    first, second = (model(error, name) for error, name in zip(errors, ("first", "second"), strict=True))

    with pytest.raises(TransientError) as caught:
        await events_of(FallbackModel([first, second]))

    assert caught.value is BUSY


async def test_of_several_the_one_that_is_over_soonest(events_of):
    long = TransientError("later", retry_after=50)
    short = TransientError("soon", retry_after=5)

    with pytest.raises(TransientError) as caught:
        await events_of(FallbackModel([model(long), model(short), model(long)]))

    assert caught.value is short


async def test_what_the_policy_gives_up_on_is_no_reason_to_wait(events_of):
    policy = RetryPolicy(give_up_on={429})

    with pytest.raises(ModelError, match=r"first: slow down; second: no such key"):
        await events_of(FallbackModel([model(BUSY, "first"), model(NO_KEY)], retry=policy))


async def test_the_error_of_all_says_who_failed_how(events_of):
    with pytest.raises(ModelError, match=r"first: no such key; second: too many tokens") as caught:
        await events_of(FallbackModel([model(NO_KEY, "first"), model(FULL)]))

    assert (caught.value.type, caught.value.status) == ("AuthenticationError", 401)


async def test_a_model_that_says_nothing_is_given_up(events_of):
    slow = ScriptedModel("too late", name="slow", delay=60)

    async with asyncio.timeout(30):
        *_, response = await events_of(FallbackModel([slow, model("hello")], fallback_after=0.05))

    assert response.text == "hello"


class Dripping(ScriptedModel):
    """A word now and then, for ever."""

    async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        while True:
            yield TextDelta(text="drip ")
            await asyncio.sleep(0.01)


async def test_a_model_that_drips_is_given_up(events_of):
    async with asyncio.timeout(30):
        *_, restart, delta, response = await events_of(
            FallbackModel([Dripping("", name="drips"), model("hello")], fallback_total=0.1)
        )

    assert (restart, delta) == (StreamRestart(model="second", error_type="Timeout"), TextDelta(text="hello"))
    assert response.text == "hello"


@pytest.mark.parametrize("first", [Dripping("", name="drips"), ScriptedModel("late", name="slow", delay=60)])
async def test_what_the_caller_waits_for_is_enough_for_the_next_one(events_of, monkeypatch, first):
    world.patch(monkeypatch, "fallback_limits", lambda: (0.2, 0.3))

    async with asyncio.timeout(30):
        *_, response = await events_of(FallbackModel([first, model("hello")]))

    assert response.text == "hello"


async def test_a_fallback_among_the_models_has_time_for_each_of_its_own(events_of, monkeypatch):
    world.patch(monkeypatch, "fallback_limits", lambda: (0.4, 0.4))
    inner = FallbackModel([Dripping("", name="drips"), ScriptedModel("hello", name="slow", delay=0.2)])

    *_, response = await events_of(FallbackModel([inner, model("not asked")]))

    assert response.text == "hello"


async def test_the_last_one_is_waited_for(events_of):
    slow = ScriptedModel("at last", name="slow", delay=0.2)

    *_, response = await events_of(FallbackModel([model(BUSY), slow], fallback_after=0.01))

    assert response.text == "at last"


async def test_a_model_that_ends_without_a_response_has_failed(events_of):
    class Empty(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            yield TextDelta(text="well")

    *_, response = await events_of(FallbackModel([Empty("", name="empty"), model("hello")]))

    assert response.text == "hello"


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
        "gpt-4o",
        "sk-first-0123456789",
        fallbacks=["anthropic/claude-sonnet-4-5", LLMFactory("openai/other", api_base="http://x/v1"), own],
        retry=policy,
        temperature=0.5,
        api_base="http://first/v1",
        extra_headers={"Authorization": "Bearer first-0123456789"},
    )

    built = factory.build()

    assert isinstance(built, FallbackModel)
    assert (built.name, built.retry) == ("gpt-4o", policy)
    first, second, third, fourth = built.models
    assert [member.name for member in built.models] == ["gpt-4o", "anthropic/claude-sonnet-4-5", "openai/other", "own"]
    assert isinstance(second, LiteLLMModel) and second.params == {"temperature": 0.5}
    assert second._api_key is None and second._api_base is None and second._secret_params == {}
    assert isinstance(first, LiteLLMModel) and first._secret_params
    assert isinstance(third, LiteLLMModel) and fourth is own


@pytest.mark.parametrize("wrong", [[42], [None], [""]])
async def test_what_is_no_model_is_refused(wrong):
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
