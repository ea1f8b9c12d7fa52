"""A journaled tool call. See `tool_promises` for what a crash means to it, `tool_running` for where its code runs,
`tool_results` and `tool_wholes` for what becomes of a result, `tool_caps` for what a run may spend."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from pydantic_core import PydanticSerializationError, to_json

from ravi_django.kernel import AgentStep, HookEvent, InvalidInputError, Tool, ToolArgumentsError, ToolExecutionResult
from ravi_django.kernel.content import blocks_adapter, blocks_json
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY, MAX_ARGUMENTS_DEPTH, is_too_deep
from ravi_django.runtime import frames, interceptors, tool_caps, tool_wholes
from ravi_django.runtime.entries import Entry, Recorded, encode, storable
from ravi_django.runtime.frames import CLIP
from ravi_django.runtime.tool_caps import KIND, Stopwatch, weight
from ravi_django.runtime.tool_promises import perform
from ravi_django.runtime.tool_results import error as error_result
from ravi_django.runtime.tool_results import is_small, result_of
from ravi_django.runtime.tool_uncertain import decide_left, decided

if TYPE_CHECKING:
    from ravi_django.runtime.context import DurableContext

__all__ = ["KIND", "call", "decide_left"]


async def call(ctx: DurableContext, name: str, arguments: dict[str, Any]) -> ToolExecutionResult:
    """Whatever a tool does or fails to do comes back as a result; only what ends the lease does not."""
    effects = ctx.effects
    name = storable(name)[:200]  # a model may make one up that no column holds
    call_id = ctx._scope().call_id
    path = ctx._path()
    if is_too_deep(arguments):  # before anything has to encode them; the same words in every replay
        arguments = {INVALID_ARGUMENTS_KEY: f"they are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"}
    row = await effects.recall(path, KIND, name, arguments, None)
    if row is not None:
        ctx.pass_turns(path, (row.result or {}).get("turns", 0))
        interceptors.raise_refused(row.error)
        return _decode(row, call_id or path)
    arguments = _as_recorded(name, arguments)
    entry = Entry(KIND, path, name, request={"arguments": arguments})
    if call_id:
        entry.request["call_id"] = call_id
    async with effects.performing():
        _announce(ctx, entry)
        effects.spent.begin(name)
        with tool_caps.watched() as watch:
            result = await decided(ctx, entry)
            if result is None:
                result = await _made(ctx, entry, watch)
            if entry.result is None:  # a transactional tool has recorded itself
                result = await _kept(ctx, entry, result, watch)
                entry.elapsed_s = watch.elapsed
                await effects.record(entry)
        effects.spent.end(watch.elapsed - watch.waited, weight(entry.result["content"]))
        effects.started.pop(path, None)
        effects.uncertain.pop(path, None)
        await ctx.hook(HookEvent.TOOL_END, tool=name, path=path, is_error=result.is_error)
    interceptors.raise_refused(entry.error)
    return result.model_copy(update={"call_id": call_id or path})


async def _made(ctx: DurableContext, entry: Entry, watch: Stopwatch) -> ToolExecutionResult:
    arguments = entry.request["arguments"]
    if not ctx.effects.journal.has_below(f"{entry.path}/"):  # else it goes on, behind what it has waited for
        await ctx.hook(HookEvent.TOOL_START, tool=entry.name, path=entry.path, arguments=arguments)
    prepared = await _prepare(ctx, entry.name, arguments)
    if isinstance(prepared, str):
        return error_result(prepared)
    tool, ready = prepared
    performing = partial(perform, keep=partial(_keep, ctx, watch))
    if not ctx.middleware.function:
        return await performing(ctx, tool, ready, entry)
    return await interceptors.around_tool(
        ctx,
        tool,
        ready,
        entry,
        prepare=lambda changed: _ready(ctx, tool, changed),
        perform=performing,
        to_result=result_of,
    )


# -------------------------------------------------------------------------------------------------- before it


def _as_recorded(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as their row can hold them. What is no JSON has no lasting form: a replay could not tell whether
    the call is the same."""
    held = storable(arguments)
    for argument, value in held.items():
        try:
            to_json(value)
        except PydanticSerializationError as error:
            raise InvalidInputError(f"{name}: argument {argument!r} is not JSON: {error}", field=argument) from None
    return dict(held)


async def _prepare(ctx: DurableContext, name: str, arguments: dict[str, Any]) -> tuple[Tool, dict[str, Any]] | str:
    """The tool and its arguments, or words for the model on why the call is not made."""
    tool = ctx.toolbox.get(name)
    if tool is None:
        known = ", ".join(ctx.toolbox.names()) or "none"
        return f"there is no tool {name!r}; the tools are: {known}"
    if refusal := ctx.effects.spent.refusal(tool):
        return refusal
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


# --------------------------------------------------------------------------------------------------- behind it


async def _kept(
    ctx: DurableContext, entry: Entry, result: ToolExecutionResult, watch: Stopwatch
) -> ToolExecutionResult:
    """`_keep`, off the loop when there is much of it."""
    limit = tool_wholes.limit_of(ctx.toolbox.get(entry.name))
    if tool_wholes.is_surely_small(result, limit) and is_small(list(result.content)):
        return _keep(ctx, watch, entry, result)
    return await asyncio.to_thread(_keep, ctx, watch, entry, result)


def _keep(ctx: DurableContext, watch: Stopwatch, entry: Entry, result: ToolExecutionResult) -> ToolExecutionResult:
    """Fill the entry in with what its row is to hold; returns that much of the result."""
    if ctx.middleware.function:  # they may have put anything in
        result = result_of(result)
    limit = tool_wholes.limit_of(ctx.toolbox.get(entry.name))
    readable = ctx.toolbox.get(tool_wholes.READER) is not None
    if not tool_wholes.is_surely_small(result, limit):
        result = tool_wholes.fit(entry, result, limit, readable=readable)
    entry.result = {"content": blocks_json(result.content)}
    if result.is_error:
        entry.result["is_error"] = True
    if (whole := tool_wholes.described(entry)) is not None:
        entry.result[tool_wholes.WHOLE] = whole
    if watch.waited >= 0.001:
        entry.result[tool_caps.WAITED] = round(watch.waited, 3)
    if result.board is not None:
        entry.result["board"] = result.board
    if given := ctx.turns_of(entry.path):
        entry.result["turns"] = given
    return result


def _decode(row: Recorded, call_id: str) -> ToolExecutionResult:
    content = blocks_adapter.validate_python(row.result["content"])
    return ToolExecutionResult(call_id=call_id, content=content, is_error=row.result.get("is_error", False))
