"""A journaled tool call, with the promise that the tool's `effect` makes about crashes."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import InterfaceError, OperationalError, connections, transaction
from pydantic_core import PydanticSerializationError, to_json

from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentStep,
    Block,
    CancellationError,
    DeterminismError,
    Effect,
    HookEvent,
    InvalidInputError,
    LeaseLostError,
    PermanentError,
    TextBlock,
    Tool,
    ToolArgumentsError,
    ToolExecutionResult,
    ToolRefused,
    TransientError,
    UncertainEffectError,
)
from ravi_django.kernel.content import blocks_adapter, blocks_json
from ravi_django.runtime import frames, human, interceptors, paths
from ravi_django.runtime.effects import append_repeatable
from ravi_django.runtime.entries import Entry, Recorded, encode, storable
from ravi_django.runtime.frames import CLIP
from ravi_django.runtime.gate import Stop
from ravi_django.runtime.replay import check_identity

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

KIND = "tool.call"


async def call(ctx: DurableContext, name: str, arguments: dict[str, Any]) -> ToolExecutionResult:
    """Whatever a tool does or fails to do comes back as a result; only what ends the lease does not."""
    effects = ctx.effects
    name = storable(name)[:200]  # a model may make one up that no column holds
    call_id = ctx._scope().call_id
    path = ctx._path()
    row = await effects.recall(path, KIND, name, arguments, None)
    effects.tool_calls += 1
    if row is not None:
        return _decode(row, call_id or path)
    _check_json(name, arguments)
    entry = Entry(KIND, path, name, request={"arguments": arguments})
    if call_id:
        entry.request["call_id"] = call_id
    async with effects.performing():
        _announce(ctx, entry)
        begun = time.monotonic()
        result = await _decided(ctx, entry)
        if result is None:
            result = await _made(ctx, entry)
        if entry.result is None:  # a transactional tool has recorded itself
            _fill(entry, result)
            entry.elapsed_s = time.monotonic() - begun
            await effects.record(entry)
        effects.started.pop(path, None)
        effects.uncertain.pop(path, None)
        await ctx.hook(HookEvent.TOOL_END, tool=name, path=path, is_error=result.is_error)
    return result.model_copy(update={"call_id": call_id or path})


async def _made(ctx: DurableContext, entry: Entry) -> ToolExecutionResult:
    arguments = entry.request["arguments"]
    await ctx.hook(HookEvent.TOOL_START, tool=entry.name, path=entry.path, arguments=arguments)
    prepared = await _prepare(ctx, entry.name, arguments)
    if isinstance(prepared, str):
        return _error(prepared)
    tool, ready = prepared
    if not ctx.middleware.function:
        return await _perform(ctx, tool, ready, entry)
    return await interceptors.around_tool(
        ctx,
        tool,
        ready,
        entry,
        prepare=lambda changed: _ready(ctx, tool, changed),
        perform=_perform,
        to_result=_result_of,
    )


async def _perform(
    ctx: DurableContext, tool: Tool, ready: dict[str, Any], entry: Entry, *, through: Any = None
) -> ToolExecutionResult:
    """Run it, with its promise. `through` is called with a transactional tool's result, on its thread, before the
    commit: what it returns is committed, what it raises rolls back."""
    if tool.promised_effect is Effect.TRANSACTIONAL:
        return await _transactional(ctx, tool, ready, entry, through)
    return await _PERFORM[tool.promised_effect](ctx, tool, ready, entry)


def _check_json(name: str, arguments: dict[str, Any]) -> None:
    """What is no JSON has no lasting form: a replay could not tell whether the call is the same."""
    for argument, value in arguments.items():
        try:
            to_json(storable(value))
        except PydanticSerializationError as error:
            raise InvalidInputError(f"{name}: argument {argument!r} is not JSON: {error}", field=argument) from None


async def _decided(ctx: DurableContext, entry: Entry) -> ToolExecutionResult | None:
    """An at-most-once effect that was begun and has no result is uncertain, whatever the tool promises by now: a
    person's decision is its result. None when it is to be performed, as the next attempt."""
    effects = ctx.effects
    for path, row in effects.journal.open_started().items():
        if path not in effects.asked and _same_call(row, entry):
            raise _uncertain(entry, f"it was started at {path!r}, from where the code has moved it")
    entry.attempt = effects.journal.next_attempt(entry.path)
    begun = effects.journal.open_started().get(entry.path)
    if begun is None:
        return None
    entry.attempt = begun.attempt
    tool = ctx.toolbox.get(entry.name)
    decidable = human.may_decide_at(effects, begun.finished_at, _timeout(tool) if tool else conf.TOOL_TIMEOUT_S)
    why = f"it was started at {begun.finished_at:%Y-%m-%d %H:%M:%S} UTC and its worker died"
    return await _decide(ctx, entry, why, decidable)


async def _decide(
    ctx: DurableContext, entry: Entry, why: str, not_before: datetime | None
) -> ToolExecutionResult | None:
    """Wait for a person's word; None is "run it again", as the next attempt."""
    effects = ctx.effects
    effects.started.pop(entry.path, None)
    effects.uncertain[entry.path] = entry
    answer = await human.decide(ctx, entry, why, not_before=not_before)
    if answer["outcome"] == "fail":
        await effects.end(Stop("fail", _uncertain(entry, f"{why}; a person has decided to fail the run")))
    effects.uncertain.pop(entry.path, None)
    if answer["outcome"] == "run_again":
        entry.attempt += 1
        return None
    return _checked(ToolExecutionResult(content=human.content_of(answer.get("result"))))


def _same_call(row: Recorded, entry: Entry) -> bool:
    try:
        check_identity(row, KIND, entry.name, entry.request["arguments"])
    except DeterminismError:
        return False
    return True


async def _prepare(ctx: DurableContext, name: str, arguments: dict[str, Any]) -> tuple[Tool, dict[str, Any]] | str:
    """The tool and its arguments, or words for the model on why the call is not made."""
    tool = ctx.toolbox.get(name)
    if tool is None:
        known = ", ".join(ctx.toolbox.names()) or "none"
        return f"there is no tool {name!r}; the tools are: {known}"
    if ctx.effects.tool_calls > conf.MAX_TOOL_CALLS:
        return f"the run's limit of {conf.MAX_TOOL_CALLS} tool calls is reached; answer with what you have"
    if tool.permission and not await ctx.effects.database.call(_permitted, ctx.user_id, tool.permission):
        return f"not permitted: {name} needs the permission {tool.permission}, which the run's owner does not have"
    try:
        return tool, _ready(ctx, tool, arguments)
    except ToolArgumentsError as error:
        return str(error)


def _ready(ctx: DurableContext, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """What `execute` is called with. Raises ToolArgumentsError."""
    ready = tool.validate(arguments)
    return {**ready, tool.context_parameter: ctx} if tool.context_parameter else ready


def _permitted(user_id: str | None, permission: str) -> bool:
    user = get_user_model().objects.filter(pk=user_id).first() if user_id else None
    return user is not None and user.has_perm(permission)


# --------------------------------------------------------------------------------------------- the three promises


async def _idempotent(ctx: DurableContext, tool: Tool, ready: dict[str, Any], entry: Entry) -> ToolExecutionResult:
    try:
        return _result_of(await _execute(ctx, tool, ready, entry.path))
    except ToolRefused as error:
        return _error(str(error))
    except (TransientError, CancellationError, LeaseLostError) as error:
        if isinstance(error, TransientError) and ctx.effects.last_attempt:
            return _error(f"{error.type}: {error}")
        raise
    except TimeoutError:
        await _not_ours(ctx)
        return _error(f"{tool.name} did not finish within {_timeout(tool):g} s")
    except Exception as error:
        return _error(f"{type(error).__name__}: {error}")


async def _at_most_once(ctx: DurableContext, tool: Tool, ready: dict[str, Any], entry: Entry) -> ToolExecutionResult:
    """A started row first. From then on anything but a result or ToolRefused leaves open whether it happened."""
    effects = ctx.effects
    while True:
        started = Entry(KIND, entry.path, entry.name, phase="started", attempt=entry.attempt, request=entry.request)
        await effects.record(started)
        effects.started[entry.path] = entry
        effects.check_awake()  # it may have slept over the commit, and a person decided meanwhile
        not_before = None  # the tool's own code has ended, one way or the other
        try:
            return _result_of(await _execute(ctx, tool, ready, entry.path))
        except ToolRefused as error:
            return _error(str(error))
        except TimeoutError:
            await _not_ours(ctx)
            why = f"it did not finish within {_timeout(tool):g} s"
            not_before = human.may_decide_at(effects, effects.present(), 0.0)
        except Exception as error:
            why = f"it raised {type(error).__name__}: {error}"
        decided = await _decide(ctx, entry, why, not_before)
        if decided is not None:
            return decided


async def decide_left(ctx: DurableContext) -> None:
    """At the end of the agent's code: at-most-once effects that it began and did not wait for are decided too."""
    effects = ctx.effects
    left = effects.left_open()
    if left and effects.stop is not None and effects.stop.kind == "lost":
        effects.stop = None  # the gate was closed behind the code: this is the engine's own wait
    for path, begun in left.items():
        entry = Entry(KIND, path, begun.name, attempt=begun.attempt, request=begun.request)
        tool = ctx.toolbox.get(entry.name)
        begun_at = begun.finished_at if isinstance(begun, Recorded) else effects.present()
        decidable = human.may_decide_at(effects, begun_at, _timeout(tool) if tool else conf.TOOL_TIMEOUT_S)
        answer = await human.decide(ctx, entry, "the run's code did not wait for it", not_before=decidable)
        if answer["outcome"] == "fail":
            raise PermanentError(f"{entry.name} at {path!r}: a person has decided to fail the run")


async def _not_ours(ctx: DurableContext) -> None:
    """A timeout that struck while the tool waited for a parked call of its own is not the tool's: go on waiting."""
    if ctx.effects.waits:
        await ctx.effects.park()


def _uncertain(entry: Entry, why: str) -> UncertainEffectError:
    return UncertainEffectError(
        f"{entry.name} may or may not have happened: {why}. It is not tried again by itself; a person decides",
        path=entry.path,
        tool=entry.name,
    )


async def _transactional(
    ctx: DurableContext, tool: Tool, ready: dict[str, Any], entry: Entry, through: Any
) -> ToolExecutionResult:
    """The tool's own writes and its journal row commit together, on a thread of the tools: exactly once."""
    if inspect.iscoroutinefunction(tool.execute):
        return _error(f"{tool.name} is transactional and must be a sync tool")
    effects = ctx.effects
    begun = time.monotonic()
    entries, turns = effects.take_pending(entry)
    first = 0

    def perform() -> ToolExecutionResult:
        nonlocal first
        with transaction.atomic():
            result = _result_of(tool.execute(**ready))
            if through is not None:
                result = through(result)
            _fill(entry, result)
            entry.elapsed_s = time.monotonic() - begun
            first = append_repeatable(effects.lease, entries, turns)
        return result

    try:
        with paths.entered(_scope_below(entry.path)):
            result: ToolExecutionResult = await _on_a_thread(ctx, perform, _timeout(tool))
    except LeaseLostError:
        raise
    except Exception as error:  # rolled back: nothing happened
        entry.result = entry.error = None
        effects.notes[:0] = entries[:-1]
        effects.turns[:0] = turns
        if isinstance(error, TimeoutError | OperationalError | InterfaceError):
            # It may still commit, or have committed: only another lease can tell.
            raise LeaseLostError(effects.lease.run_id, effects.lease.epoch) from error
        return _error(f"{type(error).__name__}: {error}")
    effects.published(entries, first)
    assert isinstance(result, ToolExecutionResult)
    return result


_PERFORM = {
    Effect.IDEMPOTENT: _idempotent,
    Effect.AT_MOST_ONCE: _at_most_once,
}


async def _execute(ctx: DurableContext, tool: Tool, ready: dict[str, Any], path: str) -> Any:
    """Run it on the loop or on a tool thread, under its timeout; calls it makes through ctx are numbered below it."""
    with paths.entered(_scope_below(path)):
        if inspect.iscoroutinefunction(tool.execute):
            async with asyncio.timeout(_timeout(tool)):
                return await tool.execute(**ready)
        done = await _on_a_thread(ctx, lambda: tool.execute(**ready), _timeout(tool))
        async with asyncio.timeout(_timeout(tool)):
            return await done if inspect.isawaitable(done) else done


async def _on_a_thread(ctx: DurableContext, function: Callable[[], Any], timeout: float) -> Any:
    """Run sync code on the tools' threads. Its time begins when a thread does: waiting for one is no timeout."""
    loop = asyncio.get_running_loop()
    begun = loop.create_future()

    def begin() -> Any:
        loop.call_soon_threadsafe(begun.set_result, None)
        return _with_clean_connections(function)

    context = copy_context()
    with paths.entered(None):  # the task that waits is the engine's own
        running = asyncio.ensure_future(ctx.effects.run_sync(context.run, begin))
    try:
        await asyncio.wait([begun, running], return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(timeout):
            return await running
    finally:
        running.cancel()


def _scope_below(path: str) -> paths.Scope:
    """Where the calls that a tool makes are numbered; tasks that it makes belong to the run as the agent's do."""
    above = paths.current()
    return paths.Scope(f"{path}/", on_task=above.on_task if above else None)


def _with_clean_connections(function: Any) -> Any:
    """Tool threads live long: a database connection that a tool opened must not stay open in one."""
    try:
        return function()
    finally:
        connections.close_all()


def _timeout(tool: Tool) -> float:
    return float(tool.timeout or conf.TOOL_TIMEOUT_S)


# --------------------------------------------------------------------------------------------------- results


def _result_of(value: Any) -> ToolExecutionResult:
    """Any return value as content blocks; what is not JSON is shown as text, what is too long is cut."""
    if isinstance(value, ToolExecutionResult):
        return _checked(value)
    if isinstance(value, Block):
        return _checked(ToolExecutionResult(content=[value]))
    if isinstance(value, list) and value and all(isinstance(item, Block) for item in value):
        return _checked(ToolExecutionResult(content=value))
    text = value if isinstance(value, str) else "" if value is None else encode(value).decode()
    return ToolExecutionResult(content=[TextBlock(text=_cut(text))])


def _checked(result: ToolExecutionResult) -> ToolExecutionResult:
    try:
        body = result.model_dump_json()
    except ValueError as error:
        return _error(f"the tool returned something that is not JSON: {error}")
    if "\\u0000" not in body:
        return result
    return result.model_copy(update={"content": blocks_adapter.validate_python(storable(blocks_json(result.content)))})


def _cut(text: str) -> str:
    text = storable(text)
    limit = int(conf.MAX_RESULT_BYTES)
    if len(text) * 4 <= limit or len(body := text.encode()) <= limit:
        return text
    return body[:limit].decode(errors="ignore") + f"\n[cut here: {len(body) - limit} of {len(body)} bytes left out]"


def _error(text: str) -> ToolExecutionResult:
    return ToolExecutionResult(content=[TextBlock(text=_cut(text))], is_error=True)


def _fill(entry: Entry, result: ToolExecutionResult) -> None:
    entry.result = {"content": blocks_json(result.content)}
    if result.is_error:
        entry.result["is_error"] = True


def _decode(row: Recorded, call_id: str) -> ToolExecutionResult:
    content = blocks_adapter.validate_python(row.result["content"])
    return ToolExecutionResult(call_id=call_id, content=content, is_error=row.result.get("is_error", False))


def _announce(ctx: DurableContext, entry: Entry) -> None:
    shown = encode(entry.request["arguments"]).decode()
    arguments = json.loads(shown) if len(shown) <= CLIP else {"…": shown[:CLIP]}
    content = {
        "tool": entry.name,
        "arguments": arguments,
        "call_id": entry.request.get("call_id", ""),
        "path": entry.path,
    }
    ctx.effects.emit(frames.progress(ctx.effects.source, AgentStep.TOOL_CALL, content))
