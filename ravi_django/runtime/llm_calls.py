"""A journaled model call: streamed to whoever watches, recorded with its usage and cost, replayed for nothing."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentStep,
    ChatMessage,
    ChatModel,
    GenerationOptions,
    ModelError,
    ModelResponse,
    PermanentError,
    ReasoningDelta,
    Role,
    TextDelta,
    TransientError,
)
from ravi_django.runtime import bodies as bodies_
from ravi_django.runtime import frames, paths
from ravi_django.runtime.entries import Entry, Recorded

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext
    from ravi_django.runtime.effects import Effects

KIND = "llm.call"


async def call(
    ctx: DurableContext, model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions
) -> ModelResponse:
    """Raises ModelError or another PermanentError, recorded, with the provider's words."""
    effects = ctx.effects
    path = ctx._path()
    digests = _digests(messages, options)
    row = await effects.recall(path, KIND, model.name, None, digests)
    if row is not None:
        return _decode(row)
    async with effects.performing():
        await _keep_bodies(effects, messages, options)
        effects.emit(frames.progress(effects.source, AgentStep.THINKING, {"model": model.name, "call": path}))
        begun = time.monotonic()
        entry = Entry(KIND, path, model.name, digests=digests, inbox_upto=effects.inbox_upto)
        entry.request = {"messages": len(messages)}
        failure: Exception | None = None
        try:
            with paths.entered(None):  # a client's own tasks are no part of the run's numbering: a replay has none
                response = await _stream(ctx, model, messages, options, path)
            _fill(entry, response)
        except TransientError as error:
            if not effects.last_attempt:
                raise
            failure = ModelError(str(error), type=error.type)  # as it will be replayed
        except PermanentError as error:
            failure = error
        if failure is not None:
            entry.error = {"type": getattr(failure, "type", type(failure).__name__), "message": str(failure)}
        entry.elapsed_s = time.monotonic() - begun
        await effects.record(entry)
    if failure is not None:
        raise failure
    return response


async def _stream(
    ctx: DurableContext, model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions, path: str
) -> ModelResponse:
    effects = ctx.effects
    attempt = str(effects.lease.epoch)
    response: ModelResponse | None = None
    try:
        async with asyncio.timeout(conf.MODEL_TIMEOUT_S):
            async for event in model.stream(messages, options, ctx.meta):
                if isinstance(event, TextDelta):
                    effects.emit(frames.delta(effects.source, "text.delta", event.text, call=path, attempt=attempt))
                elif isinstance(event, ReasoningDelta):
                    effects.emit(
                        frames.delta(effects.source, "reasoning.delta", event.text, call=path, attempt=attempt)
                    )
                else:
                    response = event
    except TimeoutError:
        raise TransientError(
            f"model {model.name} gave no answer within {conf.MODEL_TIMEOUT_S:g} s", type="Timeout"
        ) from None
    if response is None:
        raise ModelError(f"model {model.name} ended its stream without a response", type="EmptyResponse")
    return response


def _fill(entry: Entry, response: ModelResponse) -> None:
    entry.result = {"content": response.message.to_json()["content"]}
    if response.model and response.model != entry.name:
        entry.result["model"] = response.model
    if response.finish_reason != "stop":
        entry.result["finish_reason"] = response.finish_reason
    entry.usage = response.usage
    entry.cost = response.cost


def _decode(row: Recorded) -> ModelResponse:
    if row.error is not None:
        raise ModelError(row.error.get("message", ""), type=row.error.get("type", "ModelError"))
    return ModelResponse(
        message=ChatMessage.model_validate({"role": Role.ASSISTANT, "content": row.result["content"]}),
        usage=row.usage,
        cost=None if row.cost is None else float(row.cost),
        model=row.result.get("model", row.name),
        finish_reason=row.result.get("finish_reason", "stop"),
    )


# ------------------------------------------------------------------------------------------ component digests


def _digests(messages: Sequence[ChatMessage], options: GenerationOptions) -> dict[str, Any]:
    """What the call was made with. Each message was digested once, when it was made."""
    found = {
        "options": options.digest[:16],
        "view": hashlib.sha256(b"".join([message.digest for message in messages])).hexdigest()[:16],
    }
    if messages and messages[0].role is Role.SYSTEM:
        found["instructions"] = messages[0].digest.hex()[:32]
    if options.tools:
        found["tools"] = options.tools_digest
    return found


async def _keep_bodies(effects: Effects, messages: Sequence[ChatMessage], options: GenerationOptions) -> None:
    """So that an old run can say what it was told."""
    bodies: dict[str, Callable[[], Any]] = {}
    if messages and messages[0].role is Role.SYSTEM:
        bodies[messages[0].digest.hex()[:32]] = messages[0].to_json
    if options.tools:
        bodies[options.tools_digest] = lambda: options.tool_schemas
    await bodies_.keep(effects.database, bodies)
