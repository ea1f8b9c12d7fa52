"""The gate before risky tools. Default is to deny: nobody to ask, an error, an odd answer never approve."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

from ravi_django.kernel import (
    CancellationError,
    DeterminismError,
    LeaseLostError,
    Risk,
    RunContext,
    Tool,
    ToolArgumentsError,
    ToolUseBlock,
    UncertainEffectError,
)
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, is_too_deep

Decision = bool | str
ApprovalHandler = Callable[[str, dict[str, Any], Risk, RunContext], Decision | Awaitable[Decision]]

# What the runtime says through the context is no decision: it ends the run's lease, not the call.
_RUNTIME_ERRORS = (CancellationError, DeterminismError, LeaseLostError, UncertainEffectError)


class ApprovalGate:
    """Asks `handler(tool_name, arguments, risk, ctx)` about every tool of at least `required` risk.

    The handler is sync or async and gives True, False, "approved" or "denied". It runs on the event loop, so a sync
    one must not block; and it runs again in a replay, so it decides by its arguments or through `ctx`.
    """

    def __init__(self, handler: ApprovalHandler | None = None, required: Risk | str | None = None) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"approval_handler is a function (tool_name, arguments, risk, ctx), not {handler!r}")
        self.handler = handler
        self.required = Risk.HIGH if required is None else Risk(required)

    def covers(self, tool: Tool, arguments: dict[str, Any]) -> bool:
        """Whether a call with these arguments needs a decision."""
        return tool.risk_for(arguments).rank >= self.required.rank

    async def refusal(self, ctx: RunContext, tool: Tool, call: ToolUseBlock) -> str | None:
        """None when the call may run, else words for the model. The decision is logged."""
        risk = tool.risk_for(call.arguments)
        decision, refusal = "approved", None
        if (misfit := _misfit(tool, call.arguments)) is not None:  # it would not run: nobody is asked
            decision, refusal = "invalid", misfit
        elif self.handler is None:
            decision = "denied"
            refusal = (
                f"denied: {tool.name} is of {risk.value} risk, it needs a person's approval "
                "and nobody is configured to give it"
            )
        elif not await self._approved(ctx, tool, call, risk):
            decision, refusal = "denied", f"denied: {tool.name} was not approved; do not call it again unchanged"
        await ctx.log(
            "approval", {"tool": tool.name, "call_id": call.call_id, "risk": risk.value, "decision": decision}
        )
        return refusal

    async def _approved(self, ctx: RunContext, tool: Tool, call: ToolUseBlock, risk: Risk) -> bool:
        assert self.handler is not None
        try:
            answer = self.handler(tool.name, dict(call.arguments), risk, ctx)
            if inspect.isawaitable(answer):
                answer = await answer
        except _RUNTIME_ERRORS:
            raise
        except Exception:
            return False
        return answer is True or answer == "approved"


def _misfit(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """Words on arguments that the tool does not take."""
    if is_too_deep(arguments):
        return f"the arguments are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"
    try:
        tool.validate(deepcopy(arguments))
    except ToolArgumentsError as error:
        return str(error)
    except Exception:
        return None  # what is wrong with the tool is no reason to run it unasked
    return None
