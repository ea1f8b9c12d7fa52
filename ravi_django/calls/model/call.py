"""A journaled model call: streamed while it runs, recorded with usage and cost, and recalled without cost.

RAVI["PRICES"] has prices that replace or extend those of litellm.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ravi_django.calls.llm import fallback, pricing
from ravi_django.calls.middleware import chain
from ravi_django.calls.model import admission, provider_waits, streaming
from ravi_django.calls.model.bill import Requests
from ravi_django.conf import conf
from ravi_django.engine.db.threads import may_pass
from ravi_django.engine.journal import bodies as bodies_
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.lease import backoff, paths
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import (
    AgentStep,
    CancellationError,
    ChatMessage,
    ChatModel,
    GenerationOptions,
    HookEvent,
    LeaseLostError,
    ModelError,
    ModelResponse,
    Role,
    SuspendInterrupt,
    TransientError,
)
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.errors import message_of
from ravi_django.kernel.json_values import is_storable, storable
from ravi_django.live.streams import hidden

KIND = "llm.call"
LEAST_WAIT_S = 0.1  # for the provider's limit: shorter waits are on no row


async def call(
    ctx: RunState, model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions
) -> ModelResponse:
    """Raises ModelError with the provider's message and BudgetExhaustedError; both are recorded."""
    path = ctx.path()
    try:
        return await _call(ctx, path, model, messages, options)
    except (asyncio.CancelledError, CancellationError):
        admission.give_up(ctx.recorder, path)
        raise


async def _call(
    ctx: RunState, path: str, model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions
) -> ModelResponse:
    recorder = ctx.recorder
    digests = _digests(messages, options)
    row = await recorder.recall(path, KIND, model.name, digests={**digests, "result_by": options.result_by})
    if row is not None:
        return _decode(row)
    entry = Entry(KIND, path, model.name, digests=digests, read_upto=recorder.state.mailbox.read_upto)
    entry.request = {"messages": len(messages)} | ({"result_by": options.result_by} if options.result_by else {})
    # A model reads results that may be lost, since it may be paid again; code of the site does not.
    flushed = bool(ctx.middleware.chat) or ctx.hooks.listens_to(HookEvent.LLM_START)
    requests = Requests()
    done: ModelResponse | ModelError | None = None
    while done is None:  # until no rate limit refuses it
        target = provider_waits.choose(recorder, model)
        tokens = provider_waits.estimate(recorder, target, messages)
        async with provider_waits.permitted(recorder, target, path, tokens, ctx.meta.deadline) as turn:
            if turn.waited_s >= LEAST_WAIT_S:
                entry.request["waited_s"] = round(entry.request.get("waited_s", 0.0) + turn.waited_s, 1)
            with fallback.begins_with(target):
                done = await _attempt(ctx, entry, model, messages, options, requests, flushed, turn.error)
        if isinstance(done, ModelResponse) and not done.cached:
            await provider_waits.answered(recorder, model, entry, tokens)
    admission.learn(recorder, entry)
    if isinstance(done, ModelError):
        raise done
    return done


async def _attempt(
    ctx: RunState,
    entry: Entry,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    requests: Requests,
    flushed: bool,
    late: ModelError | None,
) -> ModelResponse | ModelError | None:
    """Call the model once and record its answer or its final error, at once if it is `late`. None: a rate limit has
    refused the call, and the run may wait for it."""
    recorder, path = ctx.recorder, entry.path
    if late is None:
        await admission.admit(recorder, entry, model, messages, options, requests.begun)
    async with recorder.effect(flushed=flushed):
        await _keep_bodies(recorder, messages, options)
        recorder.stream.progress(AgentStep.THINKING, {"model": model.name, "call": path})
        await ctx.hook(HookEvent.LLM_START, model=model.name, messages=len(messages), path=path)
        begun, sent_at = time.monotonic(), recorder.state.present()
        done: ModelResponse | ModelError
        moved: list[dict[str, Any]] = []
        try:
            if late is not None:
                raise late
            # Tasks of the model client do not belong to the run: a replay has none.
            with paths.entered(None), _repeatable():
                response = await _answered(ctx, model, messages, options, path, moved, requests)
            done = hidden.mark_calls(_storable(priced(requests.answered(response), model.name)), ctx.toolbox)
            _fill(entry, done)
        except (TransientError, ModelError) as error:
            final = error if late else await provider_waits.refused(recorder, model, error, sent_at)
            later = final and backoff.again(final, backoff.policy_of(model), recorder.state.attempts)
            error = final or error
            done = ModelError(message_of(error), type=error.type, status=error.status)  # as it will be replayed
            if final is None or later is not None:
                await requests.note(recorder, path)
                _fill_failure(entry, done)
                await _publish_end(ctx, entry)
                recorder.stream.progress(AgentStep.THINKING, {"call": path, "refused": True})
                if later is not None:
                    raise later from None
                entry.error = None
                await admission.free(recorder, path)
                return None
        except (CancellationError, LeaseLostError, asyncio.CancelledError, SuspendInterrupt):
            await requests.note(recorder, path)
            raise
        except Exception as error:  # recorded as a replay will raise it
            status = getattr(error, "status", None)
            done = ModelError(message_of(error), type=getattr(error, "type", type(error).__name__), status=status)
        if moved:
            entry.request["fell_back"] = moved
        if isinstance(done, ModelError):
            await requests.charge(entry)
            _fill_failure(entry, done)
        await requests.note(recorder, path)
        entry.elapsed_s = time.monotonic() - begun
        await recorder.record(entry, then=functools.partial(_publish_end, ctx, entry))
    return done


@contextmanager
def _repeatable() -> Iterator[None]:
    """A query of the model's code, or of a middleware's, that may succeed later is an error that is worth a retry."""
    try:
        yield
    except Exception as error:
        if may_pass(error):
            raise TransientError(message_of(error), type=type(error).__name__) from error
        raise


async def _publish_end(ctx: RunState, entry: Entry) -> None:
    data = {"path": entry.path, "usage": entry.usage, "cost": entry.cost, "error": entry.error}
    await ctx.hook(HookEvent.LLM_END, model=entry.name, **data)


async def _answered(
    ctx: RunState,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    path: str,
    moved: list[dict[str, Any]],
    requests: Requests,
) -> ModelResponse:
    stream = functools.partial(streaming.stream, moved=moved, requests=requests)
    if not ctx.middleware.chat:
        return await stream(ctx, model, messages, options, path)
    return await chain.around_model(ctx, model, messages, options, path, stream)


def _storable(response: ModelResponse) -> ModelResponse:
    """The response as its row will hold it, so that a replay returns the same."""
    message = response.message.to_json()
    if is_storable(message):
        return response
    clean = storable(message)
    return response if clean == message else response.model_copy(update={"message": ChatMessage.model_validate(clean)})


def _fill(entry: Entry, response: ModelResponse) -> None:
    entry.result = {"content": response.message.to_json()["content"]}
    if response.model and response.model != entry.name:
        entry.result["model"] = response.model
    if response.finish_reason != "stop":
        entry.result["finish_reason"] = response.finish_reason
    if response.cached:
        entry.result["cached"] = True
    if response.usage.estimated:
        entry.result["estimated"] = True
    entry.usage = response.usage
    entry.cost = response.cost


def _fill_failure(entry: Entry, failure: ModelError) -> None:
    entry.error = storable({"type": failure.type, "message": str(failure)})
    if failure.status is not None:
        entry.error["status"] = failure.status


def _decode(row: Recorded) -> ModelResponse:
    admission.raise_refused(row)
    if row.error is not None:
        error = row.error
        raise ModelError(error.get("message", ""), type=error.get("type", "ModelError"), status=error.get("status"))
    return ModelResponse(
        message=ChatMessage.model_validate({"role": Role.ASSISTANT, "content": row.result["content"]}),
        usage=row.usage,
        cost=None if row.cost is None else float(row.cost),
        model=row.result.get("model", row.name),
        finish_reason=row.result.get("finish_reason", "stop"),
        cached=row.result.get("cached", False),
    )


# ------------------------------------------------------------------------------------------ component digests


def _digests(messages: Sequence[ChatMessage], options: GenerationOptions) -> dict[str, Any]:
    """Digests of the call's instructions and tools, which name their stored bodies."""
    digests: dict[str, Any] = {}
    if messages and messages[0].role is Role.SYSTEM:
        digests["instructions"] = messages[0].digest.hex()[:32]
    if options.tools:
        digests["tools"] = options.tools_digest
    return digests


async def _keep_bodies(recorder: Recorder, messages: Sequence[ChatMessage], options: GenerationOptions) -> None:
    """Store the instructions and tool schemas, which the row names by digest."""
    bodies: dict[str, Callable[[], Any]] = {}
    if messages and messages[0].role is Role.SYSTEM:
        bodies[messages[0].digest.hex()[:32]] = messages[0].to_json
    if options.tools:
        bodies[options.tools_digest] = lambda: options.tool_schemas
    await bodies_.keep(recorder.database, bodies)


pricing.use_table(lambda: conf.PRICES, lambda: conf.UNKNOWN_PRICE)


def priced(response: ModelResponse, name: str) -> ModelResponse:
    """The response with its cost. Without one, the cost comes from the table, by the model that answered (a fallback
    may cost less or more), else by `name`, else from RAVI["UNKNOWN_PRICE"]."""
    if response.cost is not None:
        return response
    prices = pricing.site_prices(response.model or name) or pricing.unknown_prices()
    if prices is None:
        return response
    return response.model_copy(update={"cost": pricing.cost_by(prices, response.usage)})


def setting_errors(table: Any) -> Iterator[str]:
    """The errors of a table of prices, each with its place."""
    if not isinstance(table, Mapping):
        yield f" is {table!r}, not a dict of model name or pattern to prices"
        return
    for model, prices in table.items():
        if not isinstance(model, str) or not isinstance(prices, Mapping):
            yield f"[{model!r}] is no dict of prices under a model's name"
            continue
        for name in sorted(set(prices) - set(pricing.FIELDS), key=str):
            near = did_you_mean(name, pricing.FIELDS)
            yield f"[{model!r}] has an unknown key {name!r}; known: {', '.join(pricing.FIELDS)}{near}"
        for name in pricing.FIELDS:
            yield from _faults_of_price(model, name, prices)


def unknown_price_errors(price: Any) -> Iterator[str]:
    if price not in (None, "allow") and (isinstance(price, bool) or not isinstance(price, int | float) or price < 0):
        yield f" is {price!r}"


def _faults_of_price(model: str, name: str, prices: Mapping[str, Any]) -> Iterator[str]:
    if name not in prices:
        if name in pricing.NEEDED:
            yield f"[{model!r}] has no {name!r}: calls would have no cost"
        return
    price = prices[name]
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        yield f"[{model!r}][{name!r}] is {price!r}, not dollars a token, 0 or more"
