"""Where an agent's middlewares meet the runtime: around `run`, around a model call, around a tool."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from ravi_django.kernel import (
    Agent,
    CancellationError,
    ChatMessage,
    ChatModel,
    Effect,
    GenerationOptions,
    GuardrailError,
    LeaseLostError,
    Message,
    MiddlewareTermination,
    ModelError,
    ModelResponse,
    RunContext,
    TextBlock,
    Tool,
    ToolArgumentsError,
    ToolExecutionResult,
    TransientError,
)
from ravi_django.kernel.middleware import AgentRunContext, ChatContext, FunctionContext
from ravi_django.runtime import frames, paths
from ravi_django.runtime.entries import Entry, storable
from ravi_django.runtime.tool_running import ToolPaused

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

_RUNTIME_ERRORS = (CancellationError, LeaseLostError)  # the lease's end: no middleware may swallow them

# ------------------------------------------------------------------------------------------------ agent level


async def run_agent(agent: Agent, ctx: DurableContext, inbox: list[Message]) -> Any:
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
    if context.result is not returned:  # a middleware's own: also in place of what was replied before
        ctx.output, ctx.replied = context.result, True
    return context.result


# ------------------------------------------------------------------------------------------------- chat level

Stream = Callable[..., Awaitable[ModelResponse]]


async def around_model(
    ctx: DurableContext,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    path: str,
    stream: Stream,
) -> ModelResponse:
    """One model call through the chat-level middlewares; `stream(ctx, model, messages, options, path, show=)` makes
    it. Raises what the call raises, and ModelError where the chain gives no answer."""
    context = ChatContext(cast(RunContext, ctx), path, model, messages, options)
    streamed: str | None = None  # what was shown as it came
    ended: BaseException | None = None

    async def final() -> None:
        nonlocal streamed, ended
        shown = context.stream
        context.made = True
        try:
            context.response = await stream(ctx, context.model, context.messages, context.options, path, show=shown)
        except BaseException as error:
            ended = error
            raise
        streamed = context.response.text if shown else None

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
        attempt = f"{ctx.effects.lease.epoch}.through"  # another attempt: it replaces what was shown
        ctx.effects.emit(frames.delta(ctx.effects.source, "text.delta", response.text, call=path, attempt=attempt))
    return response


def _answer(stop: MiddlewareTermination) -> ModelResponse:
    if isinstance(stop.result, ModelResponse):
        return stop.result
    if stop.result is None:
        raise ModelError(str(stop), type="MiddlewareTermination")
    return ModelResponse.of([TextBlock(text=str(stop.result))], cost=0.0)


# --------------------------------------------------------------------------------------------- function level

Through = Callable[[ToolExecutionResult], ToolExecutionResult]
Perform = Callable[..., Awaitable[ToolExecutionResult]]


async def around_tool(
    ctx: DurableContext,
    tool: Tool,
    ready: dict[str, Any],
    entry: Entry,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]],
    perform: Perform,
    to_result: Callable[[Any], ToolExecutionResult],
) -> ToolExecutionResult:
    """One tool call through the function-level middlewares. `perform(ctx, tool, ready, entry, through=)` makes it.

    Once it was made, an exception of a middleware is an error result beside a recorded effect, never an uncertain
    one. A transactional tool commits behind the chain, which shares its timeout, and is rolled back by an exception of
    it.
    """
    call = _Call(ctx, tool, ready, entry, prepare, perform)
    given = entry.request["arguments"]
    call_id = entry.request.get("call_id", "")
    context = FunctionContext(
        cast(RunContext, ctx), entry.path, tool, copy.deepcopy(given), call_id, attempt=entry.attempt
    )
    scope = paths.current()
    failure: Exception | None = None
    try:
        with paths.entered(None):
            await call.through_chain(context, lambda: call.make(context, given, scope))
        result = context.result
    except MiddlewareTermination as stop:
        result = None if stop.result is None else to_result(stop.result)
        failure = None if result is not None else stop
    except Exception as error:
        result, failure = None, error
    except BaseException as error:
        call.abandon(error)
        if call.overdue and not _cancelled():
            return await call.close(_words(tool, True, None), None)
        raise
    ending = call.ended
    if ending is None and not call.made and isinstance(failure, (*_RUNTIME_ERRORS, TransientError)):
        ending = failure
    if ending is not None:
        call.abandon(ending)
        raise ending
    if result is None:
        result = _words(tool, call.made, failure)
    result = await call.close(result, failure)
    if isinstance(failure, GuardrailError):  # recorded with the call, so that a replay ends where this one does
        entry.error = _refusal(failure, happened=call.made and tool.promised_effect is Effect.AT_MOST_ONCE)
    return result


def _refusal(error: GuardrailError, *, happened: bool) -> dict[str, Any]:
    found = storable({"type": "GuardrailError", "message": str(error), "guardrail": error.guardrail})
    return {**found, "happened": True} if happened else dict(found)  # then a retry of the run must not do it again


def raise_refused(error: dict[str, Any] | None) -> None:
    """By what the row of a tool call holds: raise what a guardrail has ended it with."""
    if error is not None and error.get("type") == "GuardrailError":
        raise GuardrailError(error.get("message", ""), guardrail=error.get("guardrail", ""))


def _words(tool: Tool, made: bool, failure: Exception | None) -> ToolExecutionResult:
    if failure is None:
        text = f"{tool.name} was not run: a middleware skipped it and gave no result"
    elif made:
        text = f"{tool.name} was run, but its result was not passed on: {type(failure).__name__}: {failure}"
    else:
        text = f"{tool.name} was not run: {type(failure).__name__}: {failure}"
    return ToolExecutionResult(content=[TextBlock(text=text)], is_error=True)


class _Call:
    """The end of the chain: the tool, run at most once."""

    def __init__(
        self,
        ctx: DurableContext,
        tool: Tool,
        ready: dict[str, Any],
        entry: Entry,
        prepare: Callable[[dict[str, Any]], dict[str, Any]],
        perform: Perform,
    ) -> None:
        self.made = False
        # What the runtime has to be told, whatever the middlewares make of it.
        self.ended: Exception | ToolPaused | None = None
        self._ctx, self._tool, self._ready, self._entry = ctx, tool, ready, entry
        self._prepare, self._perform = prepare, perform
        self._commit: Future[ToolExecutionResult] | None = None  # what a transactional tool's thread waits for
        self._task: asyncio.Task[ToolExecutionResult] | None = None
        self._chain: asyncio.Task[None] | None = None  # of a transactional tool: ended with its timeout
        self.overdue = False  # the tool's time was over before the chain was

    async def through_chain(self, context: FunctionContext, make: Callable[[], Awaitable[None]]) -> None:
        """Raises what the chain raises."""
        chain = self._ctx.middleware.run_function(context, make)
        if self._tool.promised_effect is not Effect.TRANSACTIONAL:
            await chain
            return
        self._chain = asyncio.ensure_future(chain)  # its transaction is open meanwhile, and must not stay so
        await self._chain

    async def make(self, context: FunctionContext, given: dict[str, Any], scope: paths.Scope | None) -> None:
        if context.arguments != given:
            try:
                self._ready = self._prepare(context.arguments)
            except ToolArgumentsError as error:
                text = f"a middleware's arguments do not fit: {error}"
                context.result = ToolExecutionResult(content=[TextBlock(text=text)], is_error=True)
                return
            self._entry.request = {**self._entry.request, "ran_with": context.arguments}
        self.made = context.made = True
        try:
            with paths.entered(scope):
                context.result = await self._make()
        except (Exception, ToolPaused) as error:
            self.ended = error
            raise

    async def _make(self) -> ToolExecutionResult:
        if self._tool.promised_effect is not Effect.TRANSACTIONAL:
            return await self._perform(self._ctx, self._tool, self._ready, self._entry)
        loop = asyncio.get_running_loop()
        raw: asyncio.Future[ToolExecutionResult] = loop.create_future()
        commit = self._commit = Future()

        def through(result: ToolExecutionResult) -> ToolExecutionResult:
            loop.call_soon_threadsafe(_set, raw, result)
            return commit.result()

        with paths.entered(None):  # the engine's own task
            self._task = asyncio.ensure_future(
                self._perform(self._ctx, self._tool, self._ready, self._entry, through=through)
            )
        await asyncio.wait([raw, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not raw.done():
            return self._task.result()
        self._task.add_done_callback(self._end_chain)
        return raw.result()

    def _end_chain(self, task: asyncio.Task[Any]) -> None:
        """The call is over. When the chain is not, the tool's time was up, and its thread is still to roll back."""
        if self._commit is None or self._chain is None or self._commit.done():
            return
        self.overdue = True
        self._commit.set_exception(TimeoutError())
        self._chain.cancel()

    def abandon(self, error: BaseException) -> None:
        """Nothing is committed any more."""
        if self._commit is None or self._task is None or self._commit.done():
            return
        self._task.add_done_callback(_look_at)
        self._commit.set_exception(error if isinstance(error, Exception) else RuntimeError("the call was abandoned"))

    async def close(self, result: ToolExecutionResult, failure: Exception | None) -> ToolExecutionResult:
        """The chain is through: let what waits for it be committed."""
        if self._commit is None or self._task is None:
            return result
        if not self._commit.done():
            if failure is None:
                self._commit.set_result(result)
            else:
                self._commit.set_exception(failure)
        return await self._task


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _look_at(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more: what it raises is not asked for."""
    if not task.cancelled():
        task.exception()
