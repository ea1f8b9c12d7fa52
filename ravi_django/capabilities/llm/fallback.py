"""Several models behind one name: the next one is asked as soon as the one before fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.errors import InvalidInputError, ModelError, TransientError
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelEvent, ModelResponse, RetryPolicy
from ravi_django.kernel.stream import StreamRestart
from ravi_django.kernel.supervision import RunMeta

FALLBACK_AFTER_S = 60.0
FALLBACK_TOTAL_S = 300.0
CALLERS_FAULTS = frozenset({400, 413, 422})  # of HTTP: the next provider would be given the same bad request
TOO_LONG = "ContextWindowExceededError"  # a 400, but another model's window may be larger

Failure = TransientError | ModelError

_SHARE = 0.9  # of the caller's patience: the next model is asked before the caller gives all of them up


def _unlimited() -> tuple[float, float]:
    return math.inf, math.inf


_limits: Callable[[], tuple[float, float]] = _unlimited


def use_limits(limits: Callable[[], tuple[float, float]]) -> None:
    """Let no model but the last take as long as the caller waits: `limits()` gives the seconds at the time, of silence
    and for a whole answer."""
    global _limits
    _limits = limits


class FallbackModel:
    """A ChatModel over others. Its name, and so the journal's, is the first one's; `response.model` says who answered.

    The next model is asked at once when one fails: with a TransientError, with a ModelError that is not the caller's
    own fault (a 400, 413 or 422, other than a conversation too long for its window), or with one that is named in
    `fallback_on` (types or HTTP statuses); also when it sends nothing for `fallback_after` seconds, or has not ended
    its answer after `fallback_total` (for the last one, and for both as their upper bounds, the run's own
    `RAVI["MODEL_TIMEOUT_S"]` and `RAVI["MODEL_TOTAL_S"]` count). A StreamRestart says so to the stream. When all have
    failed, an error that is worth a retry comes out if there is one: the run tries all of them again later, by `retry`
    (the first model's, when not given).
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        retry: RetryPolicy | None = None,
        fallback_on: Collection[str | int] = (),
        fallback_after: float = FALLBACK_AFTER_S,
        fallback_total: float = FALLBACK_TOTAL_S,
    ) -> None:
        if not models:
            raise InvalidInputError("a fallback list needs at least one model", field="models")
        self.models = tuple(models)
        self.name = self.models[0].name
        self.retry = retry or getattr(self.models[0], "retry", None)
        self.fallback_on = frozenset(fallback_on)
        self.fallback_after, self.fallback_total = fallback_after, fallback_total

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(map(repr, self.models))})"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield the events of the first model that answers. Raises as `ChatModel.stream` when none does, and the
        caller's own faults at once."""
        async with aclosing(self._answers(messages, options, meta, waits=True)) as events:
            async for event in events:
                yield event

    async def _answers(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta, *, waits: bool
    ) -> AsyncGenerator[ModelEvent]:
        """`waits`: the last one may take its time, nobody comes behind it."""
        failures: list[Failure] = []
        for place, model in enumerate(self.models, 1):
            if failures:
                yield StreamRestart(model=model.name, error_type=failures[-1].type)
            last = waits and place == len(self.models)
            failure: Failure | None = None
            async with aclosing(self._events(model, messages, options, meta, last=last)) as events:
                try:
                    async for event in events:
                        yield event
                        if isinstance(event, ModelResponse):
                            return
                    failure = ModelError(f"model {model.name} ended without a response", type="EmptyResponse")
                except (TransientError, ModelError) as error:
                    failure = error
            if not self._goes_on(failure):
                raise failure
            failures.append(failure)
        raise self._of_all(failures)

    async def _events(
        self,
        model: ChatModel,
        messages: Sequence[ChatMessage],
        options: GenerationOptions,
        meta: RunMeta,
        *,
        last: bool,
    ) -> AsyncGenerator[ModelEvent]:
        """One model's events; all but the last are given up when nothing comes for too long, or no end."""
        if isinstance(model, FallbackModel):  # each of its own has its time
            stream: Any = model._answers(messages, options, meta, waits=last)
        else:
            stream = model.stream(messages, options, meta)
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
                    late = f"did not end its answer within {total:g} s" if now() >= ends else None
                    words = f"model {name} {late or f'sent nothing for {silence:g} s'}"
                    raise TransientError(words, type="Timeout") from None
                yield event

    def _goes_on(self, error: Failure) -> bool:
        if {error.type, error.status} & self.fallback_on or error.type == TOO_LONG:
            return True
        return isinstance(error, TransientError) or error.status not in CALLERS_FAULTS

    def _of_all(self, failures: Sequence[Failure]) -> Failure:
        policy = self.retry or RetryPolicy()
        if later := [error for error in failures if policy.retries(error)]:
            return min(later, key=lambda error: getattr(error, "retry_after", None) or 0.0)
        if len(failures) == 1:
            return failures[0]
        said = "; ".join(f"{model.name}: {error}" for model, error in zip(self.models, failures, strict=True))
        return ModelError(f"every model failed: {said}", type=failures[0].type, status=failures[0].status)

    # ------------------------------------------------------------------------------------ what is known of them

    async def context_window(self) -> int | None:
        """The smallest of theirs, so that whoever answers can; None when all are unknown."""
        known = [await window() for window in self._all("context_window")]
        return min((size for size in known if size is not None), default=None)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """By the first one that can count. Raises NotImplementedError when none can."""
        for count in self._all("count_tokens"):
            return int(await count(messages))
        raise NotImplementedError("none of the models counts tokens")

    async def supports_schema(self) -> bool:
        """Whether all of them do."""
        asked = self._all("supports_schema")
        return len(asked) == len(self.models) and all([await supports() for supports in asked])

    def _all(self, name: str) -> list[Any]:
        return [getattr(model, name) for model in self.models if hasattr(model, name)]
