"""A journaled tool call. `promises` has the effect of a crash on it, `running` its code's execution, `results` its
result, and `lease/tool_limits.py` the limits of a run.

A handoff tool returns the next agent, as text for the model and as a value for the agent's code.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pydantic_core import from_json

from ravi_django.calls.middleware import chain
from ravi_django.calls.tools import pauses, results
from ravi_django.calls.tools.execute import scope_below
from ravi_django.calls.tools.guarantees import perform
from ravi_django.calls.tools.results import error as error_result, happened, is_small
from ravi_django.calls.tools.uncertain import decided
from ravi_django.engine.journal.entries import Entry, Recorded, as_recorded, encode
from ravi_django.engine.lease import stopwatch, tool_limits
from ravi_django.engine.lease.lease_state import ToolPaused
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.stopwatch import Stopwatch
from ravi_django.engine.lease.tool_limits import KIND, weight
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.content import blocks_adapter, blocks_json
from ravi_django.kernel.errors import AgentNotFoundError, InvalidInputError, ToolArgumentsError, message_of
from ravi_django.kernel.flow import FinishAgentResult
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.messages import AgentStep, Message, ToolExecutionResult
from ravi_django.kernel.middleware import HookEvent
from ravi_django.kernel.people import HumanInput
from ravi_django.kernel.tools import INVALID_ARGUMENTS_KEY, MAX_ARGUMENTS_DEPTH, Effect, Tool, is_too_deep
from ravi_django.live.streams import hidden
from ravi_django.live.streams.frames import CLIP
from ravi_django.people.rights import permitted
from ravi_django.runs.catalog import specs


async def call(ctx: RunState, name: str, arguments: dict[str, Any]) -> ToolExecutionResult:
    """Every outcome of a tool comes back as a result; only the end of the lease raises."""
    recorder = ctx.recorder
    name = storable(name)[:200]  # a model may invent one that no column holds
    call_id = ctx.here().call_id
    path = ctx.path()
    if is_too_deep(arguments):  # before they are encoded; the same text in every replay
        arguments = {INVALID_ARGUMENTS_KEY: f"they are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"}
    row = await recorder.recall(path, KIND, name, arguments)
    if row is not None:
        ctx.pass_turns(path, (row.result or {}).get("turns", 0))
        chain.raise_refused(row.error)
        return _decode(row, call_id or path)
    arguments = as_recorded(name, arguments)
    entry = Entry(KIND, path, name, request={"arguments": arguments, **hidden.of_tool(ctx.toolbox.get(name))})
    if call_id:
        entry.request["call_id"] = call_id
    async with recorder.effect():
        _announce(ctx, entry)
        recorder.state.tool_usage.begin(name)
        with stopwatch.watched() as watch:
            result = await decided(ctx, entry)
            if result is None:
                result = await _through_pauses(ctx, entry, watch)
            if entry.result is None:  # else a transactional tool has recorded itself
                if result.finish is not None:
                    result = await recorder.database.call(checked, result)
                result = await _keep_off_loop(ctx, entry, result, watch)
                entry.elapsed_s = watch.elapsed
                if not (_may_be_late(ctx, entry) and recorder.record_later(entry)):
                    await recorder.record(entry, then=partial(_call_end_hook, ctx, entry, result))
            else:
                recorder.state.close_call(path)
                with stopwatch.waiting():
                    await _call_end_hook(ctx, entry, result)
        recorder.state.tool_usage.end(watch.elapsed - watch.waited, weight(entry.result["content"]))
    chain.raise_refused(entry.error)
    is_hidden = hidden.is_marked(KIND, entry.request, entry.result)
    return result.model_copy(update={"call_id": call_id or path, "hidden": is_hidden})


def _may_be_late(ctx: RunState, entry: Entry) -> bool:
    """Whether the call may be made again: then its result need not be durable before a model reads it."""
    tool = ctx.toolbox.get(entry.name)
    is_first = tool is not None and tool.promised_effect is Effect.IDEMPOTENT and entry.attempt == 1
    return is_first and entry.elapsed_s < QUICK_S and not ctx.hooks.listens_to(HookEvent.TOOL_END)


# Beside a slower call its own commit costs little. The commit also shows whether the run was steered meanwhile.
QUICK_S = 0.05


async def _call_end_hook(ctx: RunState, entry: Entry, result: ToolExecutionResult) -> None:
    await ctx.hook(HookEvent.TOOL_END, tool=entry.name, path=entry.path, is_error=result.is_error)


async def _through_pauses(ctx: RunState, entry: Entry, watch: Stopwatch) -> ToolExecutionResult:
    """One attempt after the other: a pause closes one, and its outcome leads to the next."""
    begun = ctx.recorder.journal.started(entry.path)
    if begun is not None and begun.result is not None:  # a transactional tool has committed
        entry.attempt = begun.attempt
        ctx.pass_turns(f"{entry.path}/", begun.result.get("turns", 0))
        return await _made(ctx, entry, watch, _decode(begun, ""))
    pause = pauses.resumed(ctx, entry)
    while True:
        outcome = None if pause is None else await pauses.outcome(ctx, entry, pause)
        try:
            return await _made(ctx, entry, watch, outcome)
        except ToolPaused as paused:
            closed = await pauses.close(ctx, entry, paused)
        if isinstance(closed, ToolExecutionResult):
            return closed
        pause = closed


async def _made(
    ctx: RunState, entry: Entry, watch: Stopwatch, outcome: HumanInput | ToolExecutionResult | None
) -> ToolExecutionResult:
    """`outcome` is a person's input for the tool, after a pause; or a result in place of the tool's own: a child's
    outcome, or the result that a transactional tool has committed."""
    arguments = entry.request["arguments"]
    if outcome is None and not ctx.recorder.journal.has_below(f"{entry.path}/"):  # else it continues after a wait
        await ctx.hook(HookEvent.TOOL_START, tool=entry.name, path=entry.path, arguments=arguments)
    if isinstance(outcome, ToolExecutionResult) and not ctx.middleware.function:
        return outcome
    prepared = await _prepare(ctx, entry.name, arguments, outcome)
    if isinstance(prepared, str):
        return outcome if isinstance(outcome, ToolExecutionResult) else error_result(prepared)
    tool, ready = prepared
    performing = partial(perform, keep=partial(_keep_checked, ctx, watch))
    if isinstance(outcome, ToolExecutionResult):
        performing = partial(_handed, outcome)
    if not ctx.middleware.function:
        return await performing(ctx, tool, ready, entry)
    return await chain.around_tool(
        ctx,
        tool,
        ready,
        entry,
        asks_at=scope_below(entry.path, ctx.recorder.state.paused.get(entry.path)).prefix,
        prepare=lambda changed: _ready(ctx, tool, changed, outcome),
        perform=performing,
        to_result=partial(happened, entry.name),
    )


async def _handed(result: ToolExecutionResult, *call: Any, **options: Any) -> ToolExecutionResult:
    """Takes the tool's place at the end of its middlewares: its part has ended."""
    return result


async def _prepare(
    ctx: RunState, name: str, arguments: dict[str, Any], outcome: HumanInput | ToolExecutionResult | None
) -> tuple[Tool, dict[str, Any]] | str:
    """The tool and its arguments, or text for the model on why the call is not made."""
    tool = ctx.toolbox.get(name)
    if tool is None:
        known = ", ".join(ctx.toolbox.names()) or "none"
        return f"there is no tool {name!r}; the tools are: {known}{did_you_mean(name, ctx.toolbox.names())}"
    if outcome is None and (
        refusal := ctx.recorder.state.tool_usage.refusal(tool)
    ):  # a call that has paused was allowed
        return refusal
    if tool.permission and not await ctx.recorder.database.call(permitted, ctx.user_id, tool.permission):
        return f"not permitted: {name} needs the permission {tool.permission}, which the run's owner does not have"
    try:
        return tool, _ready(ctx, tool, arguments, outcome)
    except ToolArgumentsError as error:
        return message_of(error)


def _ready(
    ctx: RunState, tool: Tool, arguments: dict[str, Any], outcome: HumanInput | ToolExecutionResult | None
) -> dict[str, Any]:
    """The arguments of `execute`. Raises ToolArgumentsError."""
    ready = tool.validate(arguments)
    if tool.context_parameter:
        ready = {**ready, tool.context_parameter: ctx}
    if tool.input_parameter:  # replaces any value of the model
        ready = {**ready, tool.input_parameter: outcome}
    return ready


def _announce(ctx: RunState, entry: Entry) -> None:
    as_json = encode(entry.request["arguments"])
    arguments = from_json(as_json) if len(as_json) <= CLIP else {"…": as_json[:CLIP].decode(errors="ignore")}
    content = {
        "tool": entry.name,
        "arguments": arguments,
        "call_id": entry.request.get("call_id", ""),
        "path": entry.path,
    }
    ctx.recorder.stream.progress(AgentStep.TOOL_CALL, content, **hidden.of_call(entry.request))


async def _keep_off_loop(
    ctx: RunState, entry: Entry, result: ToolExecutionResult, watch: Stopwatch
) -> ToolExecutionResult:
    """`_keep`, on a thread when the result is big."""
    if is_small(list(result.content)):
        return _keep(ctx, watch, entry, result)
    return await asyncio.to_thread(_keep, ctx, watch, entry, result)


def _keep_checked(ctx: RunState, watch: Stopwatch, entry: Entry, result: ToolExecutionResult) -> ToolExecutionResult:
    """On a transactional tool's thread."""
    return _keep(ctx, watch, entry, checked(result))


def _keep(ctx: RunState, watch: Stopwatch, entry: Entry, result: ToolExecutionResult) -> ToolExecutionResult:
    """Fill the entry with the result as its row holds it; returns that part of the result."""
    if ctx.middleware.function:  # they may have returned any value
        result = happened(entry.name, result)
    limit = results.limit_of(ctx.toolbox.get(entry.name))
    run, has_reader = ctx.recorder.lease.run, ctx.toolbox.get(results.READER) is not None
    id = f"{run.id}:{run.generation}:{entry.path}" if has_reader else ""
    result = results.fit(entry, result, limit, id=id)
    entry.result = {"content": blocks_json(result.content)}
    if result.is_error:
        entry.result["is_error"] = True
    if result.hidden:
        entry.result[hidden.MARK] = True
    if (whole := results.whole_as_json(entry)) is not None:
        entry.result[results.WHOLE] = whole
    if watch.waited >= 0.001:
        entry.result[tool_limits.WAITED] = round(watch.waited, 3)
    if result.board is not None:
        entry.result["board"] = result.board
    if result.finish is not None:
        entry.result[FINISH] = finish_as_json(result.finish)
    turns = ctx.turns_of(entry.path) if entry.phase == "result" else ctx.turns_in(entry.path)
    if turns:
        entry.result["turns"] = turns
    return result


def _decode(row: Recorded, call_id: str) -> ToolExecutionResult:
    content = blocks_adapter.validate_python(row.result["content"])
    finish = row.result.get(FINISH)
    return ToolExecutionResult(
        call_id=call_id,
        content=content,
        is_error=row.result.get("is_error", False),
        hidden=hidden.is_marked(KIND, row.request, row.result),
        finish=None if finish is None else restored(finish),
    )


FINISH = "finish"  # in a row's result


def checked(result: ToolExecutionResult) -> ToolExecutionResult:
    """The result as every replay gives it, or an error for the model when the agent to hand over to does not exist.
    Reads the database: not for the event loop."""
    if result.finish is None:
        return result
    if result.is_error:
        return result.model_copy(update={"finish": None})
    try:
        finish = restored(finish_as_json(result.finish))
        specs.find(finish.target if isinstance(finish.target, AgentId) else AgentId.parse(finish.target))
    except (InvalidInputError, AgentNotFoundError) as error:
        return error_result(f"it cannot be handed over: {error}")
    return result.model_copy(update={"finish": finish})


def finish_as_json(finish: FinishAgentResult) -> dict[str, Any]:
    """As the row holds it. Raises InvalidInputError."""
    target, task = finish.target, finish.task
    if not isinstance(target, str | AgentId):
        raise InvalidInputError(f"target is an agent's address, not {target!r}", field="target")
    if task is not None and not isinstance(task, str | Message):
        raise InvalidInputError(f"task is a text or a Message, not {task!r}", field="task")
    body = task.model_dump(mode="json") if isinstance(task, Message) else task
    return {"target": str(target), "task": storable(body), **({} if finish.context else {"context": False})}


def restored(finish: dict[str, Any]) -> FinishAgentResult:
    task = finish["task"]
    return FinishAgentResult(
        AgentId.parse(finish["target"]),
        Message.model_validate(task) if isinstance(task, dict) else task,
        finish.get("context", True),
    )
