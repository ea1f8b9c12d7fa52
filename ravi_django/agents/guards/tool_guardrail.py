"""ToolGuardrail: what a tool is asked for, and what it gives, is looked at on the way."""

from __future__ import annotations

from collections.abc import Iterable

from ravi_django.agents.guards import verdict
from ravi_django.kernel import FunctionContext, FunctionMiddleware, InvalidInputError, TextBlock, ToolExecutionResult
from ravi_django.kernel.middleware import CallNext


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
        check_arguments: verdict.Check | None = None,
        check_result: verdict.Check | None = None,
        tools: Iterable[str] | None = None,
        name: str | None = None,
        on_trip: str = "error",
    ) -> None:
        if check_arguments is None and check_result is None:
            raise InvalidInputError("give it check_arguments or check_result", field="check_arguments")
        self._before = check_arguments and verdict.checked(check_arguments, "check_arguments")
        self._after = check_result and verdict.checked(check_result, "check_result")
        self.tools = None if tools is None else frozenset([tools] if isinstance(tools, str) else tools)
        self.name = verdict.named(name, check_arguments, check_result)
        self.on_trip = verdict.one_of(on_trip, ("error", "fail"))

    async def process(self, context: FunctionContext, call_next: CallNext) -> None:
        if self.tools is not None and context.tool.name not in self.tools:
            await call_next()
            return
        if self._before is not None:
            reason = await verdict.reason_of(self._before, context.arguments, context)
            if reason is not None:
                return await self._trip(context, reason, f"{context.tool.name} was not run")
        await call_next()
        if self._after is not None and context.result is not None:
            reason = await verdict.reason_of(self._after, context.result.text, context)
            if reason is not None:
                await self._trip(context, reason, f"{context.tool.name} was run, but its result is withheld")

    async def _trip(self, context: FunctionContext, reason: str, words: str) -> None:
        await verdict.tell(context.ctx, self.name, "tool", reason, place=context.path)
        error = verdict.error_of(self.name, reason)
        if self.on_trip == "fail":
            raise error
        context.result = ToolExecutionResult(content=[TextBlock(text=f"{words}: {error}")], is_error=True)
