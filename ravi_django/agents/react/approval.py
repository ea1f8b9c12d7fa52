"""Approvals of risky tool calls, by a handler in this process or by people (`ctx.approve`).

A call is denied if nobody can be asked, after an error, and after an unreadable answer.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import to_json

from ravi_django.agents.tools.approvers import Approvers, refuse_owner
from ravi_django.kernel import Addressees, HumanInput, Risk, RunContext, Tool, ToolUseBlock
from ravi_django.kernel.errors import (
    CancellationError,
    DeterminismError,
    LeaseLostError,
    ToolArgumentsError,
    UncertainEffectError,
    message_of,
)
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, is_too_deep

Decision = bool | str | HumanInput
ApprovalHandler = Callable[[str, dict[str, Any], Risk, RunContext], Decision | Awaitable[Decision]]

# These errors of the runtime end the lease. They are no decision about the call.
_RUNTIME_ERRORS = (CancellationError, DeterminismError, LeaseLostError, UncertainEffectError)
MAX_ROUNDS = 3  # approvals of one call: each answer may change the arguments to riskier ones
MAX_TEXT = 2000  # characters of changed arguments, and of a reason, that the model gets


class _Asks(Protocol):
    def __call__(
        self, ctx: RunContext, tool: Tool, arguments: dict[str, Any], risk: Risk, call_id: str
    ) -> Awaitable[HumanInput]: ...


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome for a call: `refusal` is the model's result instead of it, or `call` is made, with `note` before its
    result."""

    call: ToolUseBlock
    refusal: str | None = None
    note: str = ""


class ApprovalGate:
    """Asks about tools of at least `required` risk, and about tools whose own `approval` requires it.

    `handler(tool_name, arguments, risk, ctx)` is sync or async and returns True, False, "approved", "denied", "skipped"
    or a HumanInput. It runs on the event loop, so a sync one must not block. A replay runs it again, so it must
    decide by its arguments or through `ctx`. Without a handler, `approvers` are asked (see Approvers), else those of
    the site.
    """

    def __init__(
        self,
        handler: ApprovalHandler | None = None,
        required: Risk | str | None = None,
        approvers: Any = None,
    ) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"approval_handler must be a function (tool_name, arguments, risk, ctx), not {handler!r}")
        self.handler = handler
        self.required = Risk.HIGH if required is None else Risk(required)
        self.approvers = Approvers.of(approvers)

    def covers(self, tool: Tool, arguments: dict[str, Any]) -> bool:
        """Whether a call with these arguments needs a decision."""
        if tool.approval != "by_risk":
            return tool.approval != "never"
        return tool.risk_for(arguments).rank >= self.required.rank

    def may_cover(self, tool: Tool) -> bool:
        """Whether a call of the tool may need a decision, or has the risk of those that do."""
        risks = Risk if tool.compute_risk is not None else [Risk(tool.risk)]
        return tool.approval == "always" or any(risk.rank >= self.required.rank for risk in risks)

    def check(self, tools: Iterable[Tool]) -> None:
        """Raises InvalidInputError for approvers that cannot be asked about these tools."""
        all_tools = list(tools)
        self.approvers.check(all_tools)
        for tool in all_tools:
            for _risk, to in self.asked(tool):
                refuse_owner(tool, to)

    def asked(self, tool: Tool) -> Iterator[tuple[Risk, Addressees | None]]:
        """The risks at which people are asked about calls of the tool, and the approvers of the agent or the tool."""
        for risk in Risk if tool.compute_risk is not None else [Risk(tool.risk)]:
            is_risky = tool.approval == "by_risk" and risk.rank >= self.required.rank
            if self.handler is None and (is_risky or tool.approval == "always"):
                yield risk, self.approvers.for_call(tool, risk)

    def may_wait(self, tool: Tool) -> bool:
        """Whether a call of the tool may wait for a person."""
        return tool.waits or tool.input_parameter is not None or any(self.asked(tool))

    async def settle(self, ctx: RunContext, tool: Tool, call: ToolUseBlock) -> Settled:
        """Get a decision for a call that needs one, and record it in the journal."""
        risk = tool.risk_for(call.arguments)
        entry: dict[str, Any] = {"tool": tool.name, "call_id": call.call_id, "risk": risk.value}
        if tool.visible == "staff":
            entry["hidden"] = True  # it may have arguments
        if (misfit := misfit_of(tool, call.arguments)) is not None:  # the tool would refuse it: ask nobody
            await ctx.log("approval", {**entry, "decision": "invalid"})
            return Settled(call, misfit)
        if self.handler is None and getattr(ctx, "approve", None) is not None:
            return (await self._rounds(self._people, ctx, tool, call, risk))[0]
        if self.handler is None:
            await ctx.log("approval", {**entry, "decision": "denied"})
            return Settled(call, f"denied: {nobody(tool.name, risk)}")
        settled, decision = await self._rounds(self._handled, ctx, tool, call, risk)
        entry["decision"] = decision.decision
        more = {"by": decision.by, "reason": decision.reason, "arguments": decision.arguments}
        await ctx.log("approval", {**entry, **{key: value for key, value in more.items() if value}})
        return settled

    async def _rounds(
        self, ask: _Asks, ctx: RunContext, tool: Tool, call: ToolUseBlock, risk: Risk
    ) -> tuple[Settled, HumanInput]:
        """Ask, and ask again while the changed arguments make the call riskier than the approved one."""
        made, notes = call, ""
        for _ in range(MAX_ROUNDS):
            decision = await ask(ctx, tool, deepcopy(made.arguments), risk, call.call_id)
            if not decision.allows:
                return Settled(call, _refusal(tool, risk, decision)), decision
            if decision.decision == "approved":
                return Settled(made, note=notes), decision
            changed = dict(decision.arguments or {})
            if (misfit := misfit_of(tool, changed)) is not None:
                denied = HumanInput("deny", reason=f"the changed arguments do not fit: {misfit}", by=decision.by)
                return Settled(call, _refusal(tool, risk, denied)), denied
            made, notes = made.model_copy(update={"arguments": changed}), _note(decision, changed)
            if tool.risk_for(changed).rank <= risk.rank:
                return Settled(made, note=notes), decision
            risk = tool.risk_for(changed)
        denied = HumanInput("deny", reason=f"its arguments were changed {MAX_ROUNDS} times to riskier ones")
        return Settled(call, _refusal(tool, risk, denied)), denied

    async def _people(
        self, ctx: RunContext, tool: Tool, arguments: dict[str, Any], risk: Risk, call_id: str
    ) -> HumanInput:
        return await ctx.approve(
            tool.name,
            arguments,
            risk=risk,
            to=self.approvers.for_call(tool, risk),
            call_id=call_id,
            schema=dict(tool.parameters),
            description=tool.description,
        )

    async def _handled(
        self, ctx: RunContext, tool: Tool, arguments: dict[str, Any], risk: Risk, call_id: str
    ) -> HumanInput:
        assert self.handler is not None
        try:
            answer: Any = self.handler(tool.name, arguments, risk, ctx)
            if inspect.isawaitable(answer):
                answer = await answer
            return decision_of(answer)
        except _RUNTIME_ERRORS:
            raise
        except Exception:
            return HumanInput("deny")


def decision_of(answer: Any) -> HumanInput:
    """The decision in a handler's answer. Any unknown answer is a denial."""
    if isinstance(answer, HumanInput):
        if not answer.allows:
            return HumanInput(answer.decision, reason=answer.reason, by=answer.by)
        plain = json.loads(to_json(answer.arguments))  # as the journal stores them, so a replay makes the same call
        return HumanInput(answer.action, arguments=plain, reason=answer.reason, by=answer.by)
    if answer is True or (isinstance(answer, str) and answer == "approved"):
        return HumanInput("approve")
    return HumanInput("skip" if isinstance(answer, str) and answer == "skipped" else "deny")


def nobody(tool: str, risk: Risk) -> str:
    return f"{tool} is of {risk.value} risk, it needs a person's approval and nobody is configured to give it"


def _refusal(tool: Tool, risk: Risk, decision: HumanInput) -> str:
    """Text for the model, without the name of the person: the conversation would keep it."""
    reason = _clip(decision.reason.strip())
    if decision.decision == "skipped":
        return f"skipped: {reason or f'{tool.name} was not called'}; go on without it"
    if reason == nobody(tool.name, risk):
        return f"denied: {reason}"
    return f"denied: {reason or f'{tool.name} was not approved'}; do not call it again unchanged"


def _note(decision: HumanInput, arguments: dict[str, Any]) -> str:
    """Tell the model that the call differs from the one in its turn."""
    reason = f" ({_clip(decision.reason.strip())})" if decision.reason.strip() else ""
    arguments_text = _clip(json.dumps(arguments, ensure_ascii=False, sort_keys=True))  # the order is not kept by jsonb
    return f"[a person changed the arguments of this call{reason}; it was made with {arguments_text}]"


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def misfit_of(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """Why the tool refuses the arguments; None if it takes them."""
    if is_too_deep(arguments):
        return f"the arguments are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"
    try:
        tool.validate(deepcopy(arguments))
    except ToolArgumentsError as error:
        return message_of(error)
    except Exception:
        return None  # an error of the tool itself: still ask before it runs
    return None
