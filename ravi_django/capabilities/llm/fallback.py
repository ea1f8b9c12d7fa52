"""Several models behind one name: the next one is asked as soon as the one before fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import Any

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.errors import InvalidInputError, ModelError, TransientError
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelEvent, ModelResponse, RetryPolicy
from ravi_django.kernel.stream import StreamRestart
from ravi_django.kernel.supervision import RunMeta

FALLBACK_AFTER_S = 60.0
CALLERS_FAULTS = frozenset({400, 413, 422})  # of HTTP: the next provider would be given the same bad request
TOO_LONG = "ContextWindowExceededError"  # a 400, but another model's window may be larger

Failure = TransientError | ModelError


class FallbackModel:
    """A ChatModel over others. Its name, and so the journal's, is the first one's; `response.model` says who answered.

    The next model is asked at once when one fails: with a TransientError, with a ModelError that is not the caller's
    own fault (a 400, 413 or 422, other than a conversation too long for its window), or with one that is named in
    `fallback_on` (types or HTTP statuses); also when it sends nothing for `fallback_after` seconds (keep that below
    `RAVI["MODEL_TIMEOUT_S"]`). A StreamRestart says so to the stream. When all have failed, an error that is worth a
    retry comes out if there is one: the run tries all of them again later, by `retry` (the first model's, when not
    given).
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        retry: RetryPolicy | None = None,
        fallback_on: Collection[str | int] = (),
        fallback_after: float = FALLBACK_AFTER_S,
    ) -> None:
        if not models:
            raise InvalidInputError("a fallback list needs at least one model", field="models")
        self.models = tuple(models)
        self.name = self.models[0].name
        self.retry = retry or getattr(self.models[0], "retry", None)
        self.fallback_on = frozenset(fallback_on)
        self.fallback_after = fallback_after

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(map(repr, self.models))})"

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield the events of the first model that answers. Raises as `ChatModel.stream` when none does, and the
        caller's own faults at once."""
        failures: list[Failure] = []
        for model in self.models:
            if failures:
                yield StreamRestart(model=model.name, error_type=failures[-1].type)
            last = model is self.models[-1]
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
    ) -> AsyncIterator[ModelEvent]:
        """One model's events; all but the last are given up when nothing comes for too long."""
        patience = None if last else self.fallback_after
        stream: Any = model.stream(messages, options, meta)
        async with aclosing(stream):
            while True:
                try:
                    async with asyncio.timeout(patience):
                        event = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if patience is None:
                        raise
                    words = f"model {model.name} sent nothing for {patience:g} s"
                    raise TransientError(words, type="Timeout") from None
                if isinstance(event, ModelResponse) and not event.model:
                    event = event.model_copy(update={"model": model.name})
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
