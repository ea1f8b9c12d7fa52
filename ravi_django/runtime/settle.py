"""How a lease can end, and what is written then."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import DeterminismError, HandlerError, KernelError, UncertainEffectError
from ravi_django.models import Status
from ravi_django.runtime import store
from ravi_django.runtime.effects import Stop
from ravi_django.runtime.entries import Entry, NewTurn, storable
from ravi_django.runtime.store import Lease

DEADLINE = "deadline passed"


class NotDrivable(Exception):
    """This worker cannot drive the run: give it back, or block it."""

    def __init__(self, cause: KernelError, *, block: bool) -> None:
        self.cause, self.block = cause, block
        super().__init__(str(cause))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A lease's end. `status` is what the run becomes; pending with `retry_in` seconds is a retry, without a drain."""

    status: Status
    output: str | None = None
    error: dict[str, Any] | None = None
    retry_in: float | None = None
    attempts: int | None = None  # transient failures in a row, this one included

    @classmethod
    def of_return(cls, ctx: Any, returned: Any) -> Outcome:
        value = ctx.output if ctx.replied else returned
        return cls(Status.COMPLETED, output=as_output(value))

    @classmethod
    def of_cancel(cls, reason: str) -> Outcome:
        if reason == DEADLINE:
            error = {"type": "DeadlineExceeded", "message": "the run's deadline passed before it ended"}
            return cls(Status.FAILED, error=error)
        return cls(Status.CANCELLED, error={"type": "Cancelled", "message": reason})

    @classmethod
    def of_stop(cls, stop: Stop, attempts: int) -> Outcome:
        """What the effects gate decided, or that the worker drains."""
        if stop.kind == "lost" and stop.error is not None:
            raise stop.error
        if stop.kind == "fail":
            return cls(Status.FAILED, error=error_of(stop.error))
        if stop.kind == "block":
            return cls(Status.BLOCKED, error=error_of(stop.error))
        if stop.kind == "retry":
            after = getattr(stop.error, "retry_after", None)
            delay = backoff(attempts, after)
            return cls(Status.PENDING, error=error_of(stop.error), retry_in=delay, attempts=attempts + 1)
        return cls(Status.PENDING)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        if isinstance(error, DeterminismError | UncertainEffectError):
            return cls(Status.BLOCKED, error=error_of(error))
        return cls(Status.FAILED, error=error_of(error))

    def entries(self, lease: Lease) -> list[Entry]:
        """The lifecycle row; a drain leaves none, nothing happened to the run."""
        if self.status == Status.PENDING and self.retry_in is None:
            return []
        kind = "run.retried" if self.status == Status.PENDING else f"run.{self.status}"
        name = kind.removeprefix("run.")
        result = None
        if self.retry_in is not None:
            result = {"attempt": self.attempts, "retry_in_s": round(self.retry_in, 3)}
        return [Entry(kind, f"@{name}.{lease.epoch}", error=self.error, result=result)]


def write(lease: Lease, outcome: Outcome, entries: list[Entry], turns: list[NewTurn]) -> tuple[int, UUID | None]:
    """One transaction; returns the seq of the first row and the promoted run, if any."""
    match outcome.status:
        case Status.PENDING:
            delay_s = outcome.retry_in or 0.0
            return store.requeue(lease, entries, turns, delay_s=delay_s, attempts=outcome.attempts), None
        case Status.BLOCKED:
            return store.block(lease, entries, turns, error=outcome.error or {}), None
        case _:
            return store.finish(lease, outcome.status, entries, turns, output=outcome.output, error=outcome.error)


def set_aside(lease: Lease, error: NotDrivable) -> tuple[int, list[Entry]]:
    """Block the run, or give it back with a delay; returns the rows written and the seq of the first."""
    if not error.block:
        return store.requeue(lease, delay_s=conf.SWEEP_S, attempts=lease.run.attempts + 1), []
    entry = Entry("run.blocked", f"@blocked.{lease.epoch}", error=error_of(error.cause))
    return store.block(lease, [entry], error=error_of(error.cause)), [entry]


def backoff(attempts: int, retry_after: float | None) -> float:
    """Seconds: exponential with full jitter above a half, never less than the other side asked for."""
    base: float = min(float(conf.RETRY_BASE_S) * 2**attempts, float(conf.RETRY_MAX_S))
    jittered = base * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing
    return max(jittered, min(retry_after or 0.0, 3600.0))


def error_of(error: BaseException | None) -> dict[str, Any]:
    """`{type, message}` as REST and the admin show it, with the diff where there is one."""
    if isinstance(error, HandlerError):
        error = error.cause
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return error_of(error.exceptions[0])
    kind = getattr(error, "type", None) if isinstance(error, KernelError) else None
    found: dict[str, Any] = {"type": kind or type(error).__name__, "message": str(error)}
    if isinstance(error, DeterminismError) and error.diff:
        found["diff"] = error.diff
    return dict(storable(found))


def as_output(value: Any) -> str:
    """A run's output is a string: text as it is, `{"text": …}` as its text, anything else as JSON."""
    value = storable(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], str):
        return value["text"]
    return to_json(value, fallback=str).decode()
