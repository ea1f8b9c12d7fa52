"""OutputGuardrail: what the model says is looked at before anybody sees it."""

from __future__ import annotations

from ravi_django.agents.guards import verdict
from ravi_django.agents.guards.input_guardrail import SORRY, judging
from ravi_django.kernel import ChatContext, ChatMiddleware, ModelResponse, TextBlock
from ravi_django.kernel.middleware import CallNext


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
        check: verdict.Check,
        *,
        name: str | None = None,
        on_trip: str = "fail",
        reply: str = SORRY,
        every: bool = False,
    ) -> None:
        self._check = verdict.checked(check)
        self.name = verdict.named(name, check)
        self.on_trip = verdict.one_of(on_trip, ("fail", "reply"))
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
        reason = await verdict.reason_of(self._check, response.text, context.ctx)
        if reason is None:
            return
        await verdict.tell(context.ctx, self.name, "output", reason, place=context.path)
        if self.on_trip == "fail":
            raise verdict.error_of(self.name, reason)
        context.response = ModelResponse.of(
            [TextBlock(text=self.reply)], usage=response.usage, cost=response.cost, model=response.model
        )
