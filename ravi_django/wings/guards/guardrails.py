"""Guardrails: middlewares that check text and stop a run.

InputGuardrail checks messages before the agent handles them. OutputGuardrail checks the model's answers before they are
shown. ToolGuardrail checks a tool's arguments and its result.

A check is sync or async. It returns None or False if all is well, and True or a text, the reason, to trip the
guardrail. A check that raises trips too, so nothing passes unchecked.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from ravi_django.agents.messages import message_to_chat
from ravi_django.kernel import CancellationError, GuardrailError, InvalidInputError, LeaseLostError, TransientError
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.content import TextBlock
from ravi_django.kernel.contracts import RunContext
from ravi_django.kernel.errors import message_of
from ravi_django.kernel.llm import ModelResponse
from ravi_django.kernel.messages import Message, ToolExecutionResult
from ravi_django.kernel.middleware import (
    AgentMiddleware,
    AgentRunContext,
    CallNext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
    HookEvent,
)

Check = Callable[..., Any]

MAX_REASON = 500  # characters
MAX_NAME = 80


class CheckFailed(Exception):
    """The check raised an exception. The message is the reason for the trip."""


async def reason_of(check: Check, *args: Any) -> str | None:
    """The reason of a trip; None if all is well."""
    try:
        return await asked(check, *args)
    except CheckFailed as error:
        return str(error)


async def asked(check: Check, *args: Any) -> str | None:
    """`reason_of`, but raises CheckFailed if the check raised."""
    try:
        verdict = check(*args)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except (CancellationError, LeaseLostError, TransientError):
        raise
    except Exception as error:
        raise CheckFailed(f"the check failed: {type(error).__name__}: {message_of(error)}"[:MAX_REASON]) from error
    if verdict is None or verdict is False:
        return None
    return verdict[:MAX_REASON] if isinstance(verdict, str) and verdict else "no reason was given"


async def report(ctx: RunContext, name: str, level: str, reason: str, *, path: str) -> None:
    """Write a journal entry with the next commit, and call the hooks."""
    key = f"guardrail.{name}.{short(path)}"
    await ctx.log_once(key, {"guardrail": name, "level": level, "reason": reason})
    await call_hooks(ctx, name, level, reason)


async def call_hooks(ctx: RunContext, name: str, level: str, reason: str) -> None:
    hook = getattr(ctx, "hook", None)  # fake contexts may have none
    if hook is not None:
        await hook(HookEvent.GUARDRAIL_TRIP, guardrail=name, level=level, reason=reason)


def error_of(name: str, reason: str) -> GuardrailError:
    return GuardrailError(f"guardrail {name!r} tripped: {reason}", guardrail=name)


def short(path: str) -> str:
    """A journal path, shortened for use in a key."""
    return path if len(path) <= MAX_NAME else hashlib.sha256(path.encode()).hexdigest()[:32]


def checked(check: Check | None, field: str = "check") -> Check:
    if not callable(check):
        raise InvalidInputError(f"{field} must be a function, not {check!r}", field=field)
    return check


def named(name: str | None, *functions: Check | None) -> str:
    """`name`, else the name of the first function."""
    chosen = name or next((getattr(one, "__name__", type(one).__name__) for one in functions if one), "")
    return check_text("name", chosen, MAX_NAME)


def one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidInputError(f"on_trip must be {' or '.join(map(repr, allowed))}, not {value!r}", field="on_trip")
    return value


# Inside a check of an InputGuardrail: output guardrails ignore the answers of its model calls.
_judging: ContextVar[bool] = ContextVar("ravi_judging", default=False)

SORRY = "I cannot help with that."


class InputGuardrail(AgentMiddleware):
    """Check each message before the agent sees it.

    check: `check(text, ctx)`. It may make model calls through `ctx`, which are journaled.
    name: in errors, hooks and the journal; by default the function's name.
    on_trip: "fail" ends the run with GuardrailError; "reply" answers with `reply` without calling the agent.

    The verdict is recorded and a replay does not check again, so the check may also call services over the network.
    With "fail", a check that raised leaves no verdict: a retry of the run checks again.
    A message that tripped is not in the history. Raises InvalidInputError, with the field, for bad parameters.
    """

    def __init__(self, check: Check, *, name: str | None = None, on_trip: str = "fail", reply: str = SORRY) -> None:
        self._check = checked(check)
        self.name = named(name, check)
        self.on_trip = one_of(on_trip, ("fail", "reply"))
        self.reply = reply

    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        counts = context.metadata.setdefault("input_guardrails", Counter())
        counts[self.name] += 1  # guardrails with the same name, such as two lambdas, have separate verdicts
        key = f"{self.name}~{counts[self.name]}" if counts[self.name] > 1 else self.name
        for message in context.inbox:
            reason = await self._reason(context, message, key)
            if reason is None:
                continue
            if self.on_trip == "fail":
                raise error_of(self.name, reason)
            for answered in context.inbox:
                await context.ctx.reply(answered, self.reply)
            context.result = self.reply
            return
        await call_next()

    async def _reason(self, context: AgentRunContext, message: Message, key: str) -> str | None:
        ctx = context.ctx
        # With "fail", a failed check is not recorded, so a retry of the run checks again. With "reply" it is.
        look = asked if self.on_trip == "fail" else reason_of

        async def judge() -> str | None:
            judging = _judging.set(True)
            try:
                reason = await look(self._check, message_to_chat(message).text, ctx)
            finally:
                _judging.reset(judging)
            if reason is not None:
                await call_hooks(ctx, self.name, "input", reason)
            return reason

        pin = getattr(ctx, "pin", None)  # keeps the verdict with the run
        try:
            verdict: str | None = await (judge() if pin is None else pin(f"guardrail.{key}.{short(message.id)}", judge))
        except CheckFailed as error:
            await call_hooks(ctx, self.name, "input", str(error))
            return str(error)
        return verdict


class OutputGuardrail(ChatMiddleware):
    """Check the model's answers. No text is shown before the check.

    check: `check(text, ctx)`. It runs inside the recorded call: not in a replay, and effects through `ctx` are refused.
    on_trip: "fail" ends the run with the error type GuardrailError; "reply" replaces the answer by `reply`.
    every: also check answers that call tools; "reply" then drops their calls. By default only final answers.

    The answer's usage is recorded in any case, its text is not. Model calls of an InputGuardrail's check are not
    checked. Raises InvalidInputError, with the field, for bad parameters.
    """

    def __init__(
        self,
        check: Check,
        *,
        name: str | None = None,
        on_trip: str = "fail",
        reply: str = SORRY,
        every: bool = False,
    ) -> None:
        self._check = checked(check)
        self.name = named(name, check)
        self.on_trip = one_of(on_trip, ("fail", "reply"))
        self.reply, self.every = reply, every

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        if _judging.get():
            await call_next()
            return
        context.stream = False
        await call_next()
        response = context.response
        if response is None or (response.message.tool_calls and not self.every):
            return
        reason = await reason_of(self._check, response.text, context.ctx)
        if reason is None:
            return
        await report(context.ctx, self.name, "output", reason, path=context.path)
        if self.on_trip == "fail":
            raise error_of(self.name, reason)
        context.response = ModelResponse.of(
            [TextBlock(text=self.reply)], usage=response.usage, cost=response.cost, model=response.model
        )


class ToolGuardrail(FunctionMiddleware):
    """Check tool calls before they are made, and their results.

    check_arguments: `check(arguments, context)`, before the call. If it trips, the tool is not run.
    check_result: `check(text, context)`, after the call. If it trips, the model does not get the result. The tool's
    effects stay, and a transactional tool has committed.
    `context` is a FunctionContext: `context.tool.name`, `context.ctx`. The checks run inside the recorded call: not in
    a replay, and effects through `ctx` are refused.
    tools: names of the tools to check; all by default.
    on_trip: "error" gives the model the reason; "fail" records the call as ended, so that it is not uncertain, and ends
    the run with GuardrailError.

    Raises InvalidInputError, with the field, for bad parameters.
    """

    def __init__(
        self,
        *,
        check_arguments: Check | None = None,
        check_result: Check | None = None,
        tools: Iterable[str] | None = None,
        name: str | None = None,
        on_trip: str = "error",
    ) -> None:
        if check_arguments is None and check_result is None:
            raise InvalidInputError("pass check_arguments or check_result", field="check_arguments")
        self._before = check_arguments and checked(check_arguments, "check_arguments")
        self._after = check_result and checked(check_result, "check_result")
        self.tools = None if tools is None else frozenset([tools] if isinstance(tools, str) else tools)
        self.name = named(name, check_arguments, check_result)
        self.on_trip = one_of(on_trip, ("error", "fail"))

    async def process(self, context: FunctionContext, call_next: CallNext) -> None:
        if self.tools is not None and context.tool.name not in self.tools:
            await call_next()
            return
        if self._before is not None:
            reason = await reason_of(self._before, context.arguments, context)
            if reason is not None:
                return await self._trip(context, reason, f"{context.tool.name} was not run")
        await call_next()
        if self._after is not None and context.result is not None:
            reason = await reason_of(self._after, context.result.text, context)
            if reason is not None:
                await self._trip(context, reason, f"{context.tool.name} was run, but its result is withheld")

    async def _trip(self, context: FunctionContext, reason: str, detail: str) -> None:
        await report(context.ctx, self.name, "tool", reason, path=context.path)
        error = error_of(self.name, reason)
        if self.on_trip == "fail":
            raise error
        context.result = ToolExecutionResult(content=[TextBlock(text=f"{detail}: {error}")], is_error=True)
