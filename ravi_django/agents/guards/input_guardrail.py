"""InputGuardrail: what was said to the agent is looked at before anything is done about it."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar

from ravi_django.agents._loop import message_to_chat
from ravi_django.agents.guards import verdict
from ravi_django.kernel import AgentMiddleware, AgentRunContext, Message
from ravi_django.kernel.middleware import CallNext

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

    def __init__(
        self, check: verdict.Check, *, name: str | None = None, on_trip: str = "fail", reply: str = SORRY
    ) -> None:
        self._check = verdict.checked(check)
        self.name = verdict.named(name, check)
        self.on_trip = verdict.one_of(on_trip, ("fail", "reply"))
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
                raise verdict.error_of(self.name, reason)
            await self._answer(context)
            return
        await call_next()

    async def _reason(self, context: AgentRunContext, message: Message, key: str) -> str | None:
        ctx = context.ctx
        # A check that could not be made is no verdict: a retry of the run asks again. What was answered stays answered.
        look = verdict.asked if self.on_trip == "fail" else verdict.reason_of

        async def judge() -> str | None:
            judging = _judging.set(True)
            try:
                reason = await look(self._check, message_to_chat(message).text, ctx)
            finally:
                _judging.reset(judging)
            if reason is not None:
                await verdict.tell_hooks(ctx, self.name, "input", reason)
            return reason

        pin = getattr(ctx, "pin", None)  # keeps the verdict with the run
        try:
            found: str | None = await (
                judge() if pin is None else pin(f"guardrail.{key}.{verdict.short(message.id)}", judge)
            )
        except verdict.CheckFailed as error:
            await verdict.tell_hooks(ctx, self.name, "input", str(error))
            return str(error)
        return found

    async def _answer(self, context: AgentRunContext) -> None:
        for message in context.inbox:
            await context.ctx.reply(message, self.reply)
        context.result = self.reply


def judging() -> bool:
    """Whether this code is part of an input guardrail's check."""
    return _judging.get()
