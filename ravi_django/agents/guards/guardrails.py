"""Guardrails: middlewares that check text and stop a run.

InputGuardrail checks what the agent is asked, before anything is done. OutputGuardrail checks what the model answers,
before anybody sees it. ToolGuardrail checks a tool's arguments and its result.
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
from ravi_django.kernel.hooks import HookEvent
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
)

Check = Callable[..., Any]  # None or False: fine. A text, or True: a trip, with its reason. It may be async

MAX_REASON = 500  # characters
MAX_NAME = 80


class CheckFailed(Exception):
    """The check itself has raised; the message is the reason for a trip."""


async def reason_of(check: Check, *args: Any) -> str | None:
    """Why it trips; None when all is well. A check that fails lets nothing through: that is a trip too."""
    try:
        return await asked(check, *args)
    except CheckFailed as error:
        return str(error)


async def asked(check: Check, *args: Any) -> str | None:
    """`reason_of`, but raises CheckFailed for a check that has raised."""
    try:
        found = check(*args)
        if inspect.isawaitable(found):
            found = await found
    except (CancellationError, LeaseLostError, TransientError):
        raise
    except Exception as error:
        raise CheckFailed(f"the check failed: {type(error).__name__}: {error}"[:MAX_REASON]) from error
    if found is None or found is False:
        return None
    return found[:MAX_REASON] if isinstance(found, str) and found else "no reason was given"


async def tell(ctx: RunContext, name: str, level: str, reason: str, *, place: str) -> None:
    """A journal note, which rides on the next commit, and the hooks."""
    key = f"guardrail.{name}.{short(place)}"
    await ctx.log_once(key, {"guardrail": name, "level": level, "reason": reason})
    await tell_hooks(ctx, name, level, reason)


async def tell_hooks(ctx: RunContext, name: str, level: str, reason: str) -> None:
    hook = getattr(ctx, "hook", None)  # of the runtime's context: not every fake has it
    if hook is not None:
        await hook(HookEvent.GUARDRAIL_TRIP, guardrail=name, level=level, reason=reason)


def error_of(name: str, reason: str) -> GuardrailError:
    return GuardrailError(f"guardrail {name!r} tripped: {reason}", guardrail=name)


def short(place: str) -> str:
    """A place in the run as part of a key, which may not be long."""
    return place if len(place) <= MAX_NAME else hashlib.sha256(place.encode()).hexdigest()[:32]


def checked(check: Check | None, field: str = "check") -> Check:
    if not callable(check):
        raise InvalidInputError(f"{field} must be a function, not {check!r}", field=field)
    return check


def named(name: str | None, *functions: Check | None) -> str:
    """The guardrail's name: its own, or that of the first function."""
    found = name or next((getattr(one, "__name__", type(one).__name__) for one in functions if one), "")
    return check_text("name", found, MAX_NAME)


def one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidInputError(f"on_trip is {' or '.join(map(repr, allowed))}, not {value!r}", field="on_trip")
    return value


_judging: ContextVar[bool] = ContextVar(
    "ravi_judging", default=False
)  # inside of a check: its model's words are no answer

SORRY = "I cannot help with that."


class InputGuardrail(AgentMiddleware):
    """Look at each message before the agent sees it.

    check: `check(text, ctx)`, sync or async. None or False is fine; a text, or True, is a trip with its reason. It may
    make model calls through `ctx`: they are journaled. A check that raises trips: nothing is let through unseen.
    name: in errors, hooks and the journal; by default the function's name.
    on_trip: "fail" ends the run with GuardrailError; "reply" answers with `reply`, and the agent is not called.

    The verdict is recorded: a replay does not ask again, so the check may as well call a service over the network. With
    "fail", a check that raised has given none: when the run is retried, it is asked again.
    A message that tripped is not in the history. Raises InvalidInputError, with the field, for bad parameters.
    """

    def __init__(self, check: Check, *, name: str | None = None, on_trip: str = "fail", reply: str = SORRY) -> None:
        self._check = checked(check)
        self.name = named(name, check)
        self.on_trip = one_of(on_trip, ("fail", "reply"))
        self.reply = reply

    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        named_so = context.metadata.setdefault("input_guardrails", Counter())
        named_so[self.name] += 1  # two of one name, two lambdas perhaps, have verdicts of their own
        key = f"{self.name}~{named_so[self.name]}" if named_so[self.name] > 1 else self.name
        for message in context.inbox:
            reason = await self._reason(context, message, key)
            if reason is None:
                continue
            if self.on_trip == "fail":
                raise error_of(self.name, reason)
            await self._answer(context)
            return
        await call_next()

    async def _reason(self, context: AgentRunContext, message: Message, key: str) -> str | None:
        ctx = context.ctx
        # A check that could not be made is no verdict: a retry of the run asks again. What was answered stays answered.
        look = asked if self.on_trip == "fail" else reason_of

        async def judge() -> str | None:
            judging = _judging.set(True)
            try:
                reason = await look(self._check, message_to_chat(message).text, ctx)
            finally:
                _judging.reset(judging)
            if reason is not None:
                await tell_hooks(ctx, self.name, "input", reason)
            return reason

        pin = getattr(ctx, "pin", None)  # keeps the verdict with the run
        try:
            found: str | None = await (judge() if pin is None else pin(f"guardrail.{key}.{short(message.id)}", judge))
        except CheckFailed as error:
            await tell_hooks(ctx, self.name, "input", str(error))
            return str(error)
        return found

    async def _answer(self, context: AgentRunContext) -> None:
        for message in context.inbox:
            await context.ctx.reply(message, self.reply)
        context.result = self.reply


def judging() -> bool:
    """Whether this code is part of an input guardrail's check."""
    return _judging.get()


class OutputGuardrail(ChatMiddleware):
    """Look at the model's answers. No text is shown before it is through.

    check: `check(text, ctx)`, sync or async. None or False is fine; a text, or True, is a trip with its reason. It runs
    inside the recorded call: not in a replay, and effects through `ctx` are refused. A check that raises trips.
    on_trip: "fail" ends the run with the error type GuardrailError; "reply" puts `reply` in the answer's place.
    every: also look at answers that call tools; then "reply" drops their calls. By default final answers alone.

    Either way the answer was paid for, and its usage is recorded; its words are not. What the check of an
    InputGuardrail asks a model is left alone. Raises InvalidInputError, with the field, for bad parameters.
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
        if judging():
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
        await tell(context.ctx, self.name, "output", reason, place=context.path)
        if self.on_trip == "fail":
            raise error_of(self.name, reason)
        context.response = ModelResponse.of(
            [TextBlock(text=self.reply)], usage=response.usage, cost=response.cost, model=response.model
        )


class ToolGuardrail(FunctionMiddleware):
    """Look at tool calls that are about to be made, and at their results.

    check_arguments: `check(arguments, context)`, before the call; a trip and the tool is not run.
    check_result: `check(text, context)`, after it; a trip and the model does not see the result. The tool has run: what
    it did stays, and a transactional tool has committed.
    Both sync or async, `context` a FunctionContext: `context.tool.name`, `context.ctx`. None or False is fine; a text,
    or True, is a trip with its reason; a check that raises trips. They run inside the recorded call, not in a replay,
    and effects through `ctx` are refused there.
    tools: names of the tools that this is for; all of them by default.
    on_trip: "error" tells the model why; "fail" records the call as over, so that nothing is left uncertain, and ends
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
            raise InvalidInputError("give it check_arguments or check_result", field="check_arguments")
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

    async def _trip(self, context: FunctionContext, reason: str, words: str) -> None:
        await tell(context.ctx, self.name, "tool", reason, place=context.path)
        error = error_of(self.name, reason)
        if self.on_trip == "fail":
            raise error
        context.result = ToolExecutionResult(content=[TextBlock(text=f"{words}: {error}")], is_error=True)
