"""Agents' middlewares in the runtime: around `run`, around a model call, around a tool. RAVI["MIDDLEWARE"] goes around
every agent's own middlewares."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

from django.utils.module_loading import import_string

from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.calls.llm.errors import error_text
from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.lease_state import ToolPaused
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.content import TextBlock
from ravi_django.kernel.contracts import Agent, RunContext
from ravi_django.kernel.errors import (
    CancellationError,
    GuardrailError,
    InvalidInputError,
    LeaseLostError,
    MiddlewareTermination,
    ModelError,
    ToolArgumentsError,
    TransientError,
    message_of,
)
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelResponse
from ravi_django.kernel.messages import Message, ToolExecutionResult
from ravi_django.kernel.middleware import AgentRunContext, ChatContext, FunctionContext
from ravi_django.kernel.tools import Effect, Tool
from ravi_django.runs import failures

_RUNTIME_ERRORS = (CancellationError, LeaseLostError)  # the lease's end: no middleware may swallow them


async def run_agent(agent: Agent, ctx: RunState, inbox: list[Message]) -> Any:
    """The agent's `run`, inside its agent-level middlewares."""
    if not ctx.middleware.agent:
        return await agent.run(cast(RunContext, ctx), inbox)
    context = AgentRunContext(agent.id, cast(RunContext, ctx), list(inbox))
    returned: Any = None

    async def final() -> None:
        nonlocal returned
        returned = context.result = await agent.run(context.ctx, context.inbox)

    try:
        await ctx.middleware.run_agent(context, final)
    except MiddlewareTermination as stop:
        if stop.result is None:
            raise
        context.result = stop.result
    if context.result is not returned:  # a middleware's own result: it also replaces an earlier reply
        ctx.output, ctx.replied = context.result, True
    return context.result


Stream = Callable[..., Awaitable[ModelResponse]]


async def around_model(
    ctx: RunState,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    path: str,
    stream: Stream,
) -> ModelResponse:
    """One model call through the chat-level middlewares; `stream(ctx, model, messages, options, path, show=)` makes it.
    Raises the call's errors, and ModelError if the chain gives no answer."""
    context = ChatContext(cast(RunContext, ctx), path, model, messages, options)
    streamed: str | None = None  # the text that was shown while it came
    ended: BaseException | None = None

    async def final() -> None:
        nonlocal streamed, ended
        streams = context.stream
        context.made = True
        try:
            context.response = await stream(ctx, context.model, context.messages, context.options, path, show=streams)
        except BaseException as error:
            ended = error
            raise
        streamed = context.response.text if streams else None

    try:
        await ctx.middleware.run_chat(context, final)
    except MiddlewareTermination as stop:
        context.response = _answer(stop)
    if isinstance(ended, _RUNTIME_ERRORS):
        raise ended
    response = context.response
    if response is None:
        raise ModelError("a middleware skipped the model and gave no response", type="MiddlewareTermination")
    if response.text and response.text != streamed:
        attempt = f"{ctx.recorder.lease.epoch}.through"  # another attempt: it replaces the shown text
        ctx.recorder.stream.delta("text.delta", response.text, call=path, attempt=attempt)
    return response


def _answer(stop: MiddlewareTermination) -> ModelResponse:
    if isinstance(stop.result, ModelResponse):
        return stop.result
    if stop.result is None:
        raise ModelError(message_of(stop), type="MiddlewareTermination")
    return ModelResponse.of([TextBlock(text=str(stop.result))], cost=0.0)


_MAY = ("ask_human", "approve", "log", "now", "pin")
_HARMLESS = ("auser", "check", "hook", "log_once")  # no calls of the run's code


class _Limited:
    """`context.ctx` of function middlewares: the run's context, whose calls are refused but for `_MAY` before the tool.
    These are numbered below the tool's call, and a replay makes them again until the call has a result."""

    def __init__(self, ctx: RunState, asks_at: str) -> None:
        prefix = paths.of_middleware(asks_at)
        self._ctx, self._scope = ctx, paths.Scope(prefix, tasks=ctx.waits.tasks)
        self.is_over = False  # the tool was called
        self.refused: InvalidInputError | None = None  # fails the run, whatever the middlewares make of it

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ctx, name)
        if name in _HARMLESS or not inspect.ismethod(value):
            return value
        name = value.__name__  # of ctx._log it is log

        def call(*args: Any, **options: Any) -> Any:
            if name not in _MAY or self.is_over:
                self.refused = self.refused or _refused(name, sys._getframe(1))
                raise self.refused
            if inspect.iscoroutinefunction(value):
                return self._within(value(*args, **options))
            with paths.entered(self._scope):
                return value(*args, **options)

        return call

    async def _within(self, called: Awaitable[Any]) -> Any:
        with paths.entered(self._scope):
            return await called


def _refused(name: str, frame: FrameType) -> InvalidInputError:
    location = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if name in _MAY:
        way = f"ctx.{name} comes after call_next, where no replay would make it again: call it before"
    else:
        may = ", ".join(_MAY)
        way = f"a function middleware cannot call ctx.{name}, only {may}: use an AgentMiddleware, or the tool's ctx"
    return InvalidInputError(f"{location}: {way}", field="ctx")


Perform = Callable[..., Awaitable[ToolExecutionResult]]


async def around_tool(
    ctx: RunState,
    tool: Tool,
    ready: dict[str, Any],
    entry: Entry,
    *,
    asks_at: str,
    prepare: Callable[[dict[str, Any]], dict[str, Any]],
    perform: Perform,
    to_result: Callable[[Any], ToolExecutionResult],
) -> ToolExecutionResult:
    """One tool call through the function-level middlewares. `perform(ctx, tool, ready, entry)` makes it. `asks_at`: the
    prefix of the tool's own calls.

    Once the tool has run, an exception of a middleware is an error result: it undoes nothing and leaves nothing
    uncertain. A transactional tool has committed before the middlewares see its result.
    """
    original = entry.request["arguments"]
    call_id = entry.request.get("call_id", "")
    limited = _Limited(ctx, asks_at)
    context = FunctionContext(
        cast(RunContext, limited), entry.path, tool, copy.deepcopy(original), call_id, attempt=entry.attempt
    )
    scope = paths.current()
    ended: Exception | ToolPaused | None = None  # raised by the call: no middleware may swallow it
    failure: Exception | None = None

    async def final() -> None:
        nonlocal ended, ready
        if context.arguments != original:
            try:
                ready = prepare(context.arguments)
            except ToolArgumentsError as error:
                text = f"a middleware's arguments do not fit: {message_of(error)}"
                context.result = ToolExecutionResult(content=[TextBlock(text=text)], is_error=True)
                return
            entry.request = {**entry.request, "ran_with": context.arguments}
        context.made = limited.is_over = True
        try:
            with paths.entered(scope):
                context.result = await perform(ctx, tool, ready, entry)
        except (Exception, ToolPaused) as error:
            ended = error
            raise

    try:
        with paths.entered(None):
            await ctx.middleware.run_function(context, final)
        result = context.result
    except MiddlewareTermination as stop:
        result = None if stop.result is None else to_result(stop.result)
        failure = None if result is not None else stop
    except (Exception, ToolPaused) as error:
        result, failure = None, error if isinstance(error, Exception) else None
    if limited.refused is not None:
        result, failure = None, limited.refused
    elif ended is None and not context.made and isinstance(failure, (*_RUNTIME_ERRORS, TransientError)):
        ended = failure
    if ended is not None:
        raise ended
    fails = limited.refused is not None or isinstance(failure, GuardrailError)
    return _no_result(ctx, tool, entry, context.made, failure, fails) if result is None else result


def _refusal(error: Exception, *, happened: bool) -> dict[str, Any]:
    fields = storable({"type": type(error).__name__, "message": message_of(error)})
    if isinstance(error, GuardrailError):
        fields |= {"type": "GuardrailError", "guardrail": storable(error.guardrail)}
    return {**fields, "happened": True} if happened else dict(fields)  # then a retry of the run must not do it again


def raise_refused(error: dict[str, Any] | None) -> None:
    """Raise the error of a middleware that the row of a tool call has, if any."""
    if error is not None and error.get("type") == "GuardrailError":
        raise GuardrailError(error.get("message", ""), guardrail=error.get("guardrail", ""))
    if error is not None and error.get("type") == "InvalidInputError":
        raise InvalidInputError(error.get("message", ""), field="ctx")


def _no_result(
    ctx: RunState, tool: Tool, entry: Entry, made: bool, failure: Exception | None, fails: bool
) -> ToolExecutionResult:
    """`fails`: the failure is raised to the agent, and recorded with the call: a replay ends at the same place."""
    if failure is not None and fails:
        entry.error = _refusal(failure, happened=made and tool.promised_effect is not Effect.IDEMPOTENT)
    if failure is not None and not isinstance(failure, MiddlewareTermination | GuardrailError):
        failures.tool_failed(ctx.recorder.lease.run, tool.name, failure, attempt=entry.attempt)
        entry.trace = failures.trace_of(failure)
    if failure is None:
        text = f"{tool.name} was not run: a middleware skipped it and gave no result"
    elif made:
        text = f"{tool.name} was run, but its result was not passed on: {error_text(failure)}"
    else:
        text = f"{tool.name} was not run: {error_text(failure)}"
    return ToolExecutionResult(content=[TextBlock(text=text)], is_error=True)


_made: dict[tuple[str, ...], MiddlewarePipeline] = {}  # one object serves all runs of the process
_lock = threading.Lock()


def around(inner: MiddlewarePipeline) -> MiddlewarePipeline:
    """The site's chain outside, the agent's own inside. Raises InvalidInputError for an invalid setting."""
    site = of_site()
    return MiddlewarePipeline([site, inner]) if site else inner


def of_site() -> MiddlewarePipeline:
    """The setting's middlewares, made once. Raises InvalidInputError that names the faulty one."""
    names = conf.MIDDLEWARE
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"RAVI['MIDDLEWARE'] is a list of dotted names, not {names!r}", field="MIDDLEWARE")
    key = tuple(names)
    with _lock:
        if key not in _made:
            _made[key] = MiddlewarePipeline([_middleware(name) for name in key])
        return _made[key]


def _middleware(name: str) -> Any:
    try:
        middleware = import_string(name)
        if inspect.isclass(middleware) or inspect.isfunction(middleware):
            middleware = middleware()
        return MiddlewarePipeline([middleware])
    except Exception as error:
        raise InvalidInputError(
            f"RAVI['MIDDLEWARE']: {name!r} is no middleware, and makes none: {type(error).__name__}: {error}",
            field="MIDDLEWARE",
        ) from error
