"""Several models under one name: if one fails, the next is called immediately."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.errors import InvalidInputError, ModelError, TransientError
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelEvent, ModelResponse, RetryPolicy
from ravi_django.kernel.messages import StreamAlive, StreamRestart
from ravi_django.kernel.supervision import RunMeta

FALLBACK_AFTER_S = 60.0
FALLBACK_TOTAL_S = 300.0
CALLER_ERRORS = frozenset({400, 413, 422})  # HTTP: the next provider would get the same bad request
PASSED_OVER = "RateLimited"  # the error of a model that is at its limit and was not called
TOO_LONG = "ContextWindowExceededError"  # a 400, but another model's window may be larger

Failure = TransientError | ModelError

_SHARE = 0.9  # of the caller's timeout: the next model must start before the caller gives up

_limits: Callable[[], tuple[float, float]] = lambda: (math.inf, math.inf)  # noqa: E731


def use_limits(limits: Callable[[], tuple[float, float]]) -> None:
    """Set the caller's timeouts: `limits()` returns the seconds of silence and for a whole answer. All models but the
    last get a shorter time."""
    global _limits
    _limits = limits


View = Callable[[str, Sequence[ChatMessage]], Sequence[ChatMessage]]

Note = Callable[[ChatModel, Failure], Awaitable[None]]


async def _ignore(model: ChatModel, failure: Failure) -> None:
    """Outside of a run there are no limits."""


_first: ContextVar[ChatModel | None] = ContextVar("first", default=None)
failed: ContextVar[Note] = ContextVar("failed", default=_ignore)  # is called with each model's failure
view_for: ContextVar[View] = ContextVar("view_for", default=lambda model, messages: messages)  # of the model so named


@contextmanager
def begins_with(model: ChatModel) -> Iterator[None]:
    """The models of a list before this one are at their limits and not called inside."""
    token = _first.set(model)
    try:
        yield
    finally:
        _first.reset(token)


def _has(model: Any, wanted: ChatModel | None) -> bool:
    return model is wanted or any(_has(part, wanted) for part in getattr(model, "models", ()))


class FallbackModel:
    """A ChatModel that calls other models in order. Its name, also in the journal, is the first model's;
    `response.model` is the model that answered.

    The next model is called immediately if one fails with a TransientError, with a ModelError, or with an error in
    `fallback_on` (types or HTTP statuses). It is not called for the caller's errors 400, 413 and 422, except when the
    conversation is too long for the model's window. It is also called if a model sends nothing for `fallback_after`
    seconds, or has not ended its answer after `fallback_total`. The run's `RAVI["MODEL_TIMEOUT_S"]` and
    `RAVI["MODEL_TOTAL_S"]` limit both times, and are the only limits of the last model. A StreamRestart announces the
    change in the stream. If all models fail, a retryable error is raised if there is one: the run tries all models
    again later, by `retry` (default: the first model's).
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        retry: RetryPolicy | None = None,
        fallback_on: Collection[str | int] = (),
        fallback_after: float | timedelta = FALLBACK_AFTER_S,
        fallback_total: float | timedelta = FALLBACK_TOTAL_S,
    ) -> None:
        if not models:
            raise InvalidInputError("a fallback list needs at least one model", field="models")
        self.models = tuple(models)
        self.name = self.models[0].name
        self.endpoint = " ".join(str(getattr(model, "endpoint", "")) for model in self.models)
        self.retry = retry or getattr(self.models[0], "retry", None)
        self.fallback_on = frozenset(fallback_on)
        self.fallback_after: float = check_seconds("fallback_after", fallback_after)
        self.fallback_total: float = check_seconds("fallback_total", fallback_total)

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(map(repr, self.models))})"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield the events of the first model that answers. Raises as `ChatModel.stream` if none does; the caller's
        errors immediately."""
        async with aclosing(self._answers(messages, options, meta, waits=True)) as events:
            async for event in events:
                yield event

    async def _answers(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta, *, waits: bool
    ) -> AsyncGenerator[ModelEvent]:
        """`waits`: the last model has no time limit here."""
        failures: list[Failure] = [*self._passed_over()]
        for number, model in enumerate(self.models[len(failures) :], len(failures) + 1):
            if failures:
                if failures[-1].is_sent:  # a provider may bill a request without a byte of answer
                    yield StreamAlive()
                yield StreamRestart(model=model.name, error_type=failures[-1].type)
            last = waits and number == len(self.models)
            failure: Failure | None = None
            async with aclosing(self._events(model, messages, options, meta, last=last)) as events:
                try:
                    async for event in events:
                        if number < len(self.models) and isinstance(event, ModelResponse) and event.is_empty:
                            yield StreamAlive(usage=event.usage, cost=event.cost, is_whole=True)
                            break
                        yield event
                        if isinstance(event, ModelResponse):
                            return
                    failure = ModelError(f"model {model.name} ended without an answer", type="EmptyResponse")
                except (TransientError, ModelError) as error:
                    failure = error
            if not isinstance(model, FallbackModel):
                await failed.get()(model, failure)
            if not self._may_continue(failure):
                raise failure
            failures.append(failure)
        final = self._of_all(failures)
        final.is_sent = failures[-1].is_sent
        raise final

    def _passed_over(self) -> Iterator[TransientError]:
        """An error for each model before the one that the call begins with."""
        start = next((number for number, model in enumerate(self.models) if _has(model, _first.get())), 0)
        for model in self.models[:start]:
            yield TransientError(f"{model.name} is at its rate limit", type=PASSED_OVER, status=429)

    async def _events(
        self,
        model: ChatModel,
        messages: Sequence[ChatMessage],
        options: GenerationOptions,
        meta: RunMeta,
        *,
        last: bool,
    ) -> AsyncGenerator[ModelEvent]:
        """One model's events. The time limits stop each model except the last."""
        if isinstance(model, FallbackModel):  # each of its models has its own limits
            stream: Any = model._answers(messages, options, meta, waits=last)
        else:
            stream = model.stream(view_for.get()(model.name, messages), options, meta)
            if not last:
                stream = self._in_time(stream, model.name)
        async with aclosing(stream):
            async for event in stream:
                if isinstance(event, ModelResponse) and not event.model:
                    event = event.model_copy(update={"model": model.name})
                yield event

    async def _in_time(self, stream: Any, name: str) -> AsyncGenerator[ModelEvent]:
        silence, total = _limits()
        silence, total = min(self.fallback_after, silence * _SHARE), min(self.fallback_total, total * _SHARE)
        now = asyncio.get_running_loop().time
        ends = now() + total
        async with aclosing(stream):
            while True:
                try:
                    async with asyncio.timeout_at(min(now() + silence, ends)) as limit:
                        event = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not limit.expired():
                        raise
                    unfinished = f"did not end its answer within {total:g} s" if now() >= ends else None
                    text = f"model {name} {unfinished or f'sent nothing for {silence:g} s'}"
                    late = TransientError(text, type="Timeout")
                    late.is_sent = True
                    raise late from None
                yield event

    def _may_continue(self, error: Failure) -> bool:
        if {error.type, error.status} & self.fallback_on or error.type == TOO_LONG:
            return True
        return isinstance(error, TransientError) or error.status not in CALLER_ERRORS

    def _of_all(self, failures: Sequence[Failure]) -> Failure:
        """Models that were passed over do not decide."""
        failures = [error for error in failures if error.type != PASSED_OVER] or failures
        policy = self.retry or RetryPolicy()
        if later := [error for error in failures if policy.retries(error)]:
            return min(later, key=lambda error: getattr(error, "retry_after", None) or 0.0)
        if len(failures) == 1:
            return failures[0]
        errors = "; ".join(
            f"{model.name}: {error}" for model, error in zip(self.models[-len(failures) :], failures, strict=True)
        )
        return ModelError(f"every model failed: {errors}", type=failures[0].type, status=failures[0].status)

    async def context_window(self) -> int | None:
        """The smallest known window, which fits all models; None if all are unknown."""
        known = [await window() for window in self._all("context_window")]
        return min((size for size in known if size is not None), default=None)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Count with the first model that can. Raises NotImplementedError if none can."""
        for count in self._all("count_tokens"):
            return int(await count(messages))
        raise NotImplementedError("none of the models counts tokens")

    async def supports_schema(self) -> bool:
        """Whether all models do."""
        supports = self._all("supports_schema")
        return len(supports) == len(self.models) and all([await one() for one in supports])

    async def supports_schema_beside_tools(self) -> bool:
        """Whether all models do that say so."""
        return all([await one() for one in self._all("supports_schema_beside_tools")])

    async def fetches_addresses(self) -> bool:
        """Whether one of the models does."""
        return any([await one() for one in self._all("fetches_addresses")])

    def needs_library(self) -> bool:
        """Whether a call of one of the models has to wait for the import of litellm."""
        return any(needs() for needs in self._all("needs_library"))

    def _all(self, name: str) -> list[Any]:
        return [getattr(model, name) for model in self.models if hasattr(model, name)]
