"""The error tree. A name says what the caller should do.

KernelError
├── NotFoundError              it does not exist, or not for this user
│   ├── AgentNotFoundError     register the agent, or fix its address
│   └── SessionNotFoundError   leave the session out to start a new one
├── InvalidInputError          fix the named field; nothing was written
│   ├── InputTooLargeError     send less
│   ├── UnpricedModelError     give the model a price
│   └── ToolArgumentsError     returned to the model as the tool's result
├── SecretRefusedError         a key in a stored value: give it to the model's client
├── ForbiddenError             the user may see it, and may not do that
├── UnsupportedError           the site is not set up for it; the message says what it needs
├── ConflictError              the state forbids it; read the run and decide again
│   ├── ThreadBusyError        the agent is at work in the conversation: wait, steer or interrupt it
│   ├── IllegalTransitionError
│   └── IdempotencyMismatchError
├── PermanentError             do not retry: the same call fails the same way
│   ├── ModelError             the provider refused; its words are the message
│   ├── BudgetExhaustedError   raise the budget, or stop
│   ├── SpawnDeniedError       no room in the tree
│   ├── GuardrailError         a guardrail refused a message or a call
│   ├── ResultInvalidError     the model gave no valid result in all its tries
│   ├── RateLimitedError       too many runs of the user; submit later
│   └── ToolRefused            raised by a tool *before* its effect: nothing happened
├── TransientError             retry later (after `retry_after` seconds, if the server sent it)
├── CancellationError          stop: the run was cancelled, or its deadline passed
├── HandlerError               an agent's own code raised `cause`
├── AgentCrashError            the run's process died too often
├── DeterminismError           the code differs from the journal: block the run
├── UncertainEffectError       an at-most-once effect may have happened: a person decides
├── RunFailedError             the awaited run failed; `type` is its error's
├── RunWaitsError              the awaited run waits for a person: answer its request
├── LeaseLostError             drop the run, another worker has it
└── MiddlewareTermination      a middleware ended the call on purpose

SuspendInterrupt (BaseException)   unwinds an agent that waits or drains; never catch it
"""

from __future__ import annotations

from datetime import datetime
from typing import Any


def message_of(error: object) -> str:
    """`str(error)`, also for an exception that cannot be printed."""
    try:
        return str(error)
    except BaseException as raised:
        return f"it cannot be printed: its __str__ raised {type(raised).__name__}"


class KernelError(Exception):
    """Something in the agent runtime failed."""


class NotFoundError(KernelError):
    """It does not exist, or belongs to another user; `field` names the input."""

    field: str | None = None  # the name of the input


class AgentNotFoundError(NotFoundError):
    """No agent is registered under that address, or it is disabled. `hint` names other agents: not for users who may
    not see them."""

    field = "agent"

    def __init__(self, agent: object, hint: str = "", *, is_disabled: bool = False) -> None:
        self.agent, self.is_disabled = str(agent), is_disabled
        text = f"no agent is registered as {self.agent!r}"
        text += hint or "; register it in an agents.py or in the admin"
        super().__init__(f"agent {self.agent!r} is disabled; enable it in the admin" if is_disabled else text)


class SessionNotFoundError(NotFoundError):
    """The session does not exist, or belongs to another user."""

    field = "session"

    def __init__(self, session: object) -> None:
        self.session = str(session)
        super().__init__(f"there is no session {self.session!r} of yours; leave it out to start a new one")


class InvalidInputError(KernelError, ValueError):
    """Bad input: `field` names what to fix."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class InputTooLargeError(InvalidInputError):
    """The input is over the limit; send less."""


class ToolArgumentsError(InvalidInputError):
    """The model's arguments do not fit the tool's schema; the message goes back to the model."""


class UnpricedModelError(InvalidInputError):
    """A budget in dollars, and a model whose calls have no known cost; `model` is its name."""

    code = "unpriced_model"
    WAYS = 'prices= of the model, RAVI["PRICES"], or RAVI["UNKNOWN_PRICE"] (dollars per million tokens, or "allow")'

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the budget is in dollars, and the model {model!r} has no price. Give it one: {self.WAYS}",
            field="budget",
        )


class SecretRefusedError(KernelError):
    """A key or a password in a value that is stored and shown; `field` names it. Not a ValueError: pydantic would wrap
    that and print the value."""

    def __init__(self, field: str) -> None:
        self.field = field
        super().__init__(
            f"{field} is a key or a password, and this value is stored and shown; give it to the model: "
            "LLMFactory(model, api_key), or one of the provider's environment variables"
        )


class ForbiddenError(KernelError):
    """The user may see it, and may not do that; the message says who may."""


class UnsupportedError(KernelError):
    """The site is not set up for it; the message says what it needs."""


class ConflictError(KernelError):
    """The present state forbids it."""

    code = "conflict"


class ThreadBusyError(ConflictError):
    """The agent is at work in the conversation."""

    code = "thread_busy"


class IllegalTransitionError(ConflictError):
    """A run cannot go from its status to the wanted one."""

    code = "illegal_transition"


class IdempotencyMismatchError(ConflictError):
    """The idempotency key was used before with another body."""

    code = "idempotency_mismatch"


class PermanentError(KernelError):
    """The same call would fail the same way: it is not retried."""


class ModelError(PermanentError):
    """The model provider refused; `type` is the provider's error type."""

    def __init__(self, message: str, *, type: str = "ModelError", status: int | None = None) -> None:
        self.type = type
        self.status = status
        self.is_sent = False  # the provider has got the request, and may bill it
        super().__init__(message)


class BudgetExhaustedError(PermanentError):
    """A cap on iterations, tokens, cost, turns or time was reached."""


class SpawnDeniedError(PermanentError):
    """The tree has no room for another agent."""


class GuardrailError(PermanentError):
    """A guardrail tripped; `guardrail` is its name."""

    def __init__(self, message: str, *, guardrail: str = "") -> None:
        self.guardrail = guardrail
        super().__init__(message)


class ResultInvalidError(PermanentError):
    """The model's final answer did not fit the result's schema, in all its tries."""


class RateLimitedError(PermanentError):
    """Too many runs of the user in that time; `retry_after` in seconds, if it is known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ToolRefused(PermanentError):
    """Raised by a tool before its effect: nothing happened, and the model may read that."""


class TransientError(KernelError):
    """Rate limit, timeout or outage on the other side: retried with backoff, never journaled as a result."""

    def __init__(
        self, message: str, *, type: str = "TransientError", retry_after: float | None = None, status: int | None = None
    ) -> None:
        self.type = type
        self.retry_after = retry_after
        self.status = status  # of HTTP, when there was an answer
        self.policy: Any = None  # the RetryPolicy that says when to try again; the site's when None
        self.is_sent = False  # the provider has got the request, and may bill it
        super().__init__(message)


class CancellationError(KernelError):
    """The run was cancelled or its deadline passed."""

    def __init__(self, reason: str = "cancelled") -> None:
        self.reason = reason
        super().__init__(reason)


class HandlerError(KernelError):
    """An agent's own code raised; `cause` is the exception."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(f"{type(cause).__name__}: {message_of(cause)}")


class AgentCrashError(KernelError):
    """The processes that executed the run died too often."""

    def __init__(self, run: object, agent: object) -> None:
        self.run, self.agent = str(run), str(agent)
        super().__init__(f"run {self.run} of {self.agent} crashed its worker too often; check it, then retry it")


class DeterminismError(KernelError):
    """The agent's code made another call than the journal recorded at that place."""

    def __init__(self, message: str, *, diff: dict[str, Any] | None = None) -> None:
        self.diff = diff or {}
        super().__init__(message)


class UncertainEffectError(KernelError):
    """An at-most-once effect was started and has no recorded result: it may have happened."""

    def __init__(self, message: str, *, path: str = "", tool: str = "") -> None:
        self.path, self.tool = path, tool
        super().__init__(message)


class RunFailedError(KernelError):
    """The awaited run failed or was cancelled; `type` is its error's type, `status` its end."""

    def __init__(self, message: str, *, type: str, status: str) -> None:
        self.type, self.status = type, status
        super().__init__(message)


class RunWaitsError(KernelError):
    """The awaited run waits for a person; `request` is the id of the question or approval, `run` that of the run."""

    def __init__(self, message: str, *, run: object, request: object) -> None:
        self.run, self.request = str(run), str(request)
        super().__init__(message)


class LeaseLostError(KernelError):
    """A worker wrote without holding the run's lease: the write matched no row."""

    def __init__(self, run: object, epoch: int, *, owner: str = "", until: datetime | None = None) -> None:
        self.run, self.epoch = str(run), epoch
        who = f" {owner} until {until:%H:%M:%S}" if owner and until else " another worker"
        super().__init__(f"run {self.run}: lease epoch {epoch} has ended, leased by{who}; nothing was recorded")


class MiddlewareTermination(KernelError):
    """A middleware ended the call; `result` is used in its place."""

    def __init__(self, message: str = "terminated by middleware", *, result: Any = None) -> None:
        self.result = result
        super().__init__(message)


class SuspendInterrupt(BaseException):
    """Unwinds an agent's tasks when its run suspends or its worker drains. Never catch it."""
