"""Run a tool's code on the loop or on a thread, under its timeout. Its exceptions are raised unchanged, except those
that would end the worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from typing import Any

from django.db import connections

from ravi_django.calls.llm.errors import error_text
from ravi_django.calls.tools.results import is_small, result_of
from ravi_django.engine.lease import paths, stopwatch
from ravi_django.engine.lease.lease_state import ToolPaused
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.tool_limits import timeout_of
from ravi_django.kernel.errors import CancellationError, ToolRefused
from ravi_django.kernel.flow import PauseForChildResult, PauseForInputResult
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import Tool

log = logging.getLogger("ravi.tools")

GRACE_S = 3.0  # for an async tool to end once it is cancelled


class ToolEndedOddly(Exception):
    """A tool raised something that is not an error: SystemExit, or a cancellation that nobody has requested."""


def is_pause(value: Any) -> bool:
    return isinstance(value, PauseForInputResult | PauseForChildResult)


Around = Callable[[], AbstractContextManager[list[Any]]]  # around a tool's code, which adds its result to the list


async def execute(
    ctx: RunState, tool: Tool, ready: dict[str, Any], path: str, around: Around = lambda: nullcontext([])
) -> ToolExecutionResult:
    """Run the tool; its calls through ctx are numbered below `path`. Raises TimeoutError and ToolPaused."""
    with paths.entered(scope_below(path, ctx.recorder.state.paused.get(path))):
        try:
            return await _execute(ctx, tool, ready, around)
        except CancellationError as error:
            if ctx.recorder.state.token.cancelled:
                raise
            raise ToolEndedOddly(error_text(error)) from error


async def _execute(ctx: RunState, tool: Tool, ready: dict[str, Any], around: Around) -> ToolExecutionResult:
    timeout = timeout_of(tool)

    def call() -> Any:
        ctx.recorder.state.check_awake()  # it may have waited long for its started row or a thread
        return tool.execute(**ready)

    async def called() -> Any:
        return await call()

    def called_here() -> Any:
        with around() as values:
            values.append(call())
            values[0] = _readable(values[0])  # an iterator is read once
            return values[0]

    if inspect.iscoroutinefunction(tool.execute):
        return await _converted(ctx, tool, await awaited(tool, called(), timeout, around))
    value = await on_a_thread(ctx, called_here, timeout)
    if isinstance(value, ToolExecutionResult):
        return value
    if is_pause(value):
        raise ToolPaused(value)
    return await _converted(ctx, tool, await awaited(tool, value, timeout, around))


async def awaited(tool: Tool, awaitable: Any, timeout: float, around: Around = lambda: nullcontext([])) -> Any:
    """In a task of its own: code that resists its cancellation holds up nobody. After a grace period the task is
    abandoned, and all its later calls on the run are refused."""
    scope = paths.current()
    with paths.entered(None):  # the tool's calls are numbered as without a task
        task = asyncio.ensure_future(_without_exits(awaitable, scope, around))
    asked = False  # whether its cancellation was requested
    try:
        await asyncio.wait([task], timeout=timeout)
        if not task.done():
            asked = task.cancel()
            await asyncio.wait([task], timeout=GRACE_S)
    except asyncio.CancelledError:
        if not task.done():
            asked = task.cancel()
            await _ended(task)
        if not task.done() or task.cancelled():
            raise
        _cancel_again()
    finally:
        if not task.done():
            _leave(tool, task, scope)
        elif inspect.iscoroutine(awaitable):
            awaitable.close()  # its task was cancelled before it began
    if not task.done() or (asked and task.cancelled()):
        raise TimeoutError
    try:
        return task.result()
    except asyncio.CancelledError as error:
        raise ToolEndedOddly(error_text(error)) from error


async def _without_exits(awaitable: Any, scope: paths.Scope | None, around: Around) -> Any:
    with paths.entered(scope):
        try:
            with around() as values:
                values.append(await awaitable)
                return values[0]
        except (SystemExit, KeyboardInterrupt) as error:
            raise ToolEndedOddly(error_text(error)) from error


def _cancel_again() -> None:
    """The cancellation came too late for the tool: record the effect first."""
    if (waiting := asyncio.current_task()) is not None:
        waiting.uncancel()  # the count of requests stays the same
        waiting.cancel()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Wait; a second cancellation ends the wait."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait([task], timeout=GRACE_S)


_left: set[asyncio.Task[Any]] = set()  # the loop has weak references alone


def _leave(tool: Tool, task: asyncio.Task[Any], scope: paths.Scope | None) -> None:
    if scope is not None:
        scope.whole.is_given_up = True
    _left.add(task)
    task.add_done_callback(_look_at)
    log.warning(
        "%s was cancelled and has not ended within %g s: it is left to itself",
        tool.name,
        GRACE_S,
        extra={"action": "tool.task_left"},
    )


def _look_at(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()


async def _converted(ctx: RunState, tool: Tool, value: Any) -> ToolExecutionResult:
    """The loop converts small values only."""
    if is_pause(value):
        raise ToolPaused(value)
    if is_small(value):
        return result_of(value)
    try:
        result: ToolExecutionResult = await on_a_thread(ctx, lambda: result_of(value), timeout_of(tool))
    except (TimeoutError, ToolRefused):  # the tool itself has ended
        return result_of(f"[{tool.name} ended, but its result could not be read within {timeout_of(tool):g} s]")
    return result


def _readable(value: Any) -> Any:
    """The result; an awaitable or a pause unchanged."""
    return value if inspect.isawaitable(value) or is_pause(value) else result_of(value)


async def on_a_thread(ctx: RunState, function: Callable[[], Any], timeout: float) -> Any:
    """Run sync code on the tools' threads. Its timeout begins when a thread does: waiting for one does not count."""
    loop = asyncio.get_running_loop()
    begun = loop.create_future()

    def begin() -> Any:
        loop.call_soon_threadsafe(begun.set_result, None)
        return _contained(function)

    context = copy_context()
    with paths.entered(None):  # the waiting task is the engine's
        running = asyncio.ensure_future(ctx.recorder.run_sync(context.run, begin))
    try:
        with stopwatch.waiting():
            await asyncio.wait([begun, running], return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(timeout):
            return await running
    finally:
        running.cancel()


def _contained(function: Callable[[], Any]) -> Any:
    """Close database connections that a tool opened: tool threads live long. A BaseException becomes an ordinary one:
    it would end the waiting code."""
    try:
        return function()
    except StopIteration as error:  # a future cannot hold it
        raise ToolEndedOddly(error_text(error)) from error
    except Exception:
        raise
    except BaseException as error:
        raise ToolEndedOddly(error_text(error)) from error
    finally:
        connections.close_all()


def scope_below(path: str, pause: dict[str, Any] | None) -> paths.Scope:
    """Where a tool's calls are numbered. Its tasks belong to the run as the agent's do."""
    above = paths.current()
    prefix = f"{path}/" if pause is None else path_after_pause(path, pause)
    scope = paths.Scope(prefix, tasks=above.tasks if above else None)
    scope.around = above.call_id if above else ""
    return scope


def path_after_pause(path: str, pause: dict[str, Any]) -> str:
    """The prefix of calls after a pause of the call at `path`."""
    return f"{path}/~{pause['attempt']}."
