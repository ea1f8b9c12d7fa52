"""The ways that a lease can end, and their writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import F
from pydantic_core import to_json, to_jsonable_python

from ravi_django.agents.react.result import ResultText, fitted
from ravi_django.calls.llm.errors import redact
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.journal import append, fence
from ravi_django.engine.journal.entries import Entry, NewTurn, NotJson, plain
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease import backoff
from ravi_django.engine.lease.lease_state import HANDOFF, Handoff, Stop, Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import ConflictError, DeterminismError, HandlerError, KernelError, UncertainEffectError
from ravi_django.kernel.errors import message_of
from ravi_django.kernel.json_values import storable
from ravi_django.kernel.supervision import DEADLINE
from ravi_django.models import ModelLimit, Run, Status
from ravi_django.runs import workers
from ravi_django.runs.budgets import ledger
from ravi_django.runs.failures import trace_of
from ravi_django.runs.lifecycle import endings, generations
from ravi_django.runs.lifecycle.generations import SessionBusy
from ravi_django.runs.teams import slots
from ravi_django.runs.wake import RELEASED, locking, ready


class NotDrivable(Exception):
    """This worker cannot drive the run: release it, or block it."""

    def __init__(self, cause: KernelError, *, block: bool) -> None:
        self.cause, self.block = cause, block
        super().__init__(str(cause))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A lease's end. Pending is a drain, a retry with `retry_in`, or a new generation with `successor`."""

    status: Status  # the run's new status
    output: str | None = None
    error: dict[str, Any] | None = None
    retry_in: float | None = None  # seconds
    attempts: int | None = None  # transient failures in a row, this one included
    waits: tuple[Wait, ...] = ()  # of a suspended run
    wake_at: datetime | None = None  # of a suspended run: the first end of a wait, or its deadline
    wait_s: float | None = None  # seconds until `wake_at`
    successor: Stop | None = None  # the run continues as its next generation or as another agent
    for_release: str = ""  # a worker of this release should try before the run is blocked
    raised: BaseException | None = field(default=None, compare=False)  # by the agent's code: for the log and the trace

    @classmethod
    def of_return(cls, ctx: Any, value: Any) -> Outcome:
        """`value` by `returned_by`."""
        return cls(Status.COMPLETED, output=as_output(value, ctx.meta.result_schema))

    @classmethod
    def of_cancel(cls, reason: str) -> Outcome:
        if reason is DEADLINE:  # by identity: a person's reason may say the same
            error = {"type": "DeadlineExceeded", "message": "the run's deadline passed before it ended"}
            return cls(Status.FAILED, error=error)
        return cls(Status.CANCELLED, error={"type": "Cancelled", "message": reason})

    @classmethod
    def of_stop(cls, stop: Stop, recorder: Recorder, deadline: datetime | None = None) -> Outcome:
        """The outcome of a stop. `deadline`: the run's own."""
        match stop.kind:
            case Stop.Kind.DRAIN:
                return cls(Status.PENDING)
            case Stop.Kind.SUSPEND:
                return cls.of_waits(recorder, deadline)
            case Stop.Kind.RETRY:
                delay = backoff.delay_s(stop.error, recorder.state.attempts)
                return cls(
                    Status.PENDING, error=error_of(stop.error), retry_in=delay, attempts=recorder.state.attempts + 1
                )
            case Stop.Kind.CONTINUE | Stop.Kind.HANDOFF:
                return cls(Status.PENDING, successor=stop)
            case Stop.Kind.BLOCK:
                return cls.of_block(stop.error, recorder.lease)
            case Stop.Kind.FAIL:
                return cls(Status.FAILED, error=error_of(stop.error), raised=stop.error)
            case Stop.Kind.LOST:
                assert stop.error is not None
                raise stop.error

    @classmethod
    def of_waits(cls, recorder: Recorder, deadline: datetime | None) -> Outcome:
        """Suspended until the first wait ends, or until the run's deadline."""
        # A run that waits for a model's limit is woken with a permit.
        ends = [wait.until for wait in recorder.waits.suspended_on if wait.until is not None and wait.limit is None]
        wake_at = min([*ends, *([deadline] if deadline else [])], default=None)
        wait_s = None if wake_at is None else (wake_at - recorder.state.present()).total_seconds()
        return cls(Status.SUSPENDED, waits=tuple(recorder.waits.suspended_on), wake_at=wake_at, wait_s=wait_s)

    @classmethod
    def of_block(cls, error: BaseException | None, lease: Lease) -> Outcome:
        """Code that does not fit the journal may be of the wrong release: the release that wrote last tries first."""
        wanted = lease.run.release
        if isinstance(error, DeterminismError) and wanted not in ("", conf.RELEASE) and not lease.run.for_release:
            return cls(Status.PENDING, error=error_of(error), for_release=wanted)
        return cls(Status.BLOCKED, error=with_ways_out(error_of(error)), raised=error)

    @classmethod
    def of_error(cls, error: BaseException, lease: Lease) -> Outcome:
        if isinstance(error, DeterminismError | UncertainEffectError):
            return cls.of_block(error, lease)
        return cls(Status.FAILED, error=error_of(error), raised=error)

    @property
    def limit(self) -> int | None:
        """The row of ModelLimit whose permit is expected first."""
        waits = [(wait.until, wait.limit) for wait in self.waits if wait.until is not None and wait.limit is not None]
        return min(waits)[1] if waits else None

    @property
    def handoff(self) -> Handoff | None:
        return None if self.successor is None else self.successor.handoff

    def entries(self, lease: Lease) -> list[Entry]:
        """The lifecycle row. A drain writes none: the run has not changed."""
        result: Any = None
        if self.handoff is not None:
            result = {"from": lease.run.agent, "to": self.handoff.agent, "generation": lease.run.generation + 1}
            result |= self.handoff.depth
            return [Entry(HANDOFF, self.handoff.path, self.handoff.agent, result=result)]
        name = str(self.status)
        if self.successor is not None:
            name, result = "continued", {"generation": lease.run.generation + 1, **self.successor.depth}
        elif self.retry_in is not None:
            name, result = "retried", {"attempt": self.attempts, "retry_in_s": round(self.retry_in, 3)}
        elif self.status == Status.PENDING:
            return []
        elif self.status == Status.SUSPENDED:
            result = {"waiting_on": [wait.as_json() for wait in self.waits]}
        trace = trace_of(self.raised)
        return [Entry(f"run.{name}", f"@{name}.{lease.epoch}", error=self.error, trace=trace, result=result)]


@dataclass(frozen=True, slots=True)
class Settled:
    first: int  # the seq of the first row
    status: Status  # the run's status now
    hints: list[UUID] = field(default_factory=list)  # runs to hint


def write(recorder: Recorder, outcome: Outcome, entries: list[Entry], turns: list[NewTurn]) -> Settled:
    """Settle in one transaction. Raises endings.UnreadMessages when a run that would complete has an unread message."""
    return ledger.settled(recorder.lease, entries, partial(_write, recorder, outcome, entries, turns), ends=True)


def _write(recorder: Recorder, outcome: Outcome, entries: list[Entry], turns: list[NewTurn]) -> Settled:
    lease = recorder.lease
    if outcome.handoff is not None:
        return _hand_over(recorder, outcome.handoff, entries, turns)
    if outcome.successor is not None:
        first = generations.continue_as_new(
            lease,
            entries,
            turns,
            state=outcome.successor.state,
            read_upto=recorder.state.mailbox.read_upto or 0,
        )
        return Settled(first, Status.PENDING, [lease.run_id])
    match outcome.status:
        case Status.SUSPENDED:
            return suspend(
                lease,
                entries,
                turns,
                seen=recorder.state.wake_state.wake_seq or lease.run.wake_seq,
                waits=[wait.as_json() for wait in outcome.waits],
                wake_at=outcome.wake_at,
                limit=outcome.limit,
            )
        case Status.PENDING if outcome.for_release:
            return _send_back(lease, outcome)[0]
        case Status.PENDING:
            delay_s = outcome.retry_in or 0.0
            first = requeue(lease, entries, turns, delay_s=delay_s, attempts=outcome.attempts)
            return Settled(first, Status.PENDING)
        case Status.BLOCKED:
            return block(lease, entries, turns, error=outcome.error or {})
        case _:
            first, hints = endings.finish(
                lease,
                outcome.status,
                entries,
                turns,
                output=outcome.output,
                error=outcome.error,
                entangled=recorder.state.may_have_dependents,
                retains=recorder.state.retains,
            )
            return Settled(first, outcome.status, hints)


def suspend(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    seen: int,
    waits: list[dict[str, Any]],
    wake_at: datetime | None,
    limit: int | None = None,
) -> Settled:
    """Release the lease and suspend the run, which frees its slot; or make it pending if it was woken after `seen` or
    must be cancelled. `limit`: the row of ModelLimit whose permits it waits for."""
    append.store_big_values(entries)

    def release(held: set[UUID]) -> Settled:
        first = fence.append(lease, entries, turns)
        unseen = Run.objects.filter(id=lease.run_id, wake_seq=seen, cancel_requested_at=None)
        changes = {"waiting_on": waits, "wake_at": wake_at, "awaits_slot": False, **RELEASED}
        if unseen.update(status=Status.SUSPENDED, **changes | {"model_limit": limit}):
            if limit is not None:  # after the commit: the limit's row is locked before those of runs
                waiting = ModelLimit.objects.filter(id=limit)
                transaction.on_commit(lambda: waiting.update(waiting=F("waiting") + 1), robust=True)
            return Settled(first, Status.SUSPENDED, slots.promote(lease.run.tree_id, held))
        Run.objects.filter(id=lease.run_id).update(**changes | ready())
        return Settled(first, Status.PENDING, [lease.run_id])

    return locking({lease.run_id, lease.run.tree_id}, release)


def block(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, error: dict[str, Any]) -> Settled:
    """Block the run for an operator, under its lease, which frees its slot."""
    changes = {"status": Status.BLOCKED, "error": error, "awaits_slot": False, **RELEASED}
    append.store_big_values(entries)

    def release(held: set[UUID]) -> Settled:
        first = fence.append_in_transaction(lease, entries, turns, **changes)
        # A cancelled run becomes pending instead: its next lease ends it.
        Run.objects.filter(id=lease.run_id, cancel_requested_at__isnull=False).update(**ready())
        return Settled(first, Status.BLOCKED, slots.promote(lease.run.tree_id, held))

    return locking({lease.run_id, lease.run.tree_id}, release)


def requeue(
    lease: Lease,
    entries: Sequence[Entry] = (),
    turns: Sequence[NewTurn] = (),
    *,
    delay_s: float = 0.0,
    attempts: int | None = None,
    for_release: str = "",
    error: dict[str, Any] | None = None,
) -> int:
    """Release the run as pending, after a transient error or when the worker drains. This counts no crash. With
    `for_release` a worker of that release may claim it before the delay ends. `error`, why this worker cannot drive
    it, is shown until the next claim.

    Returns the seq of the first row.
    """
    changes = {**ready(delay_s), **RELEASED, "for_release": for_release}
    changes |= {} if attempts is None else {"attempts": attempts}
    changes |= {} if error is None else {"error": error}
    changes |= {"release": for_release} if for_release else {}  # it stays the release that wrote last
    append.store_big_values(entries)
    with transaction.atomic():
        return fence.append_in_transaction(lease, entries, turns, **changes)


def _hand_over(recorder: Recorder, handoff: Handoff, entries: list[Entry], turns: list[NewTurn]) -> Settled:
    """Continue as the other agent, or if that is refused, record the refusal and run the same code again. Its turns are
    not stored then: the code adds them again."""
    lease = recorder.lease
    try:
        first, hints = generations.write_handoff(lease, entries, turns, handoff=handoff)
        return Settled(first, Status.PENDING, [*hints, lease.run_id])
    except SessionBusy:
        refusal = f"the session has another active run of {handoff.agent}; wait for its end, or answer without it"
        entries[-1].result, entries[-1].error = None, error_of(ConflictError(refusal))
        entries[-1].stored.clear()
        return Settled(requeue(lease, entries), Status.PENDING, [lease.run_id])


def _send_back(lease: Lease, outcome: Outcome) -> tuple[Settled, list[Entry]]:
    """Release the run for a worker of the release that wrote last, if there is one; else block it."""
    if outcome.for_release and workers.alive().filter(release=outcome.for_release).exists():
        first = requeue(lease, delay_s=2 * conf.LEASE_S, for_release=outcome.for_release)
        return Settled(first, Status.PENDING), []
    error = with_ways_out(outcome.error or {})
    entry = Entry("run.blocked", f"@blocked.{lease.epoch}", error=error, trace=trace_of(outcome.raised))
    return block(lease, [entry], error=error), [entry]


def resumed(lease: Lease) -> Entry:
    """The first row of a lease that is not the run's first. It has the end of the lost lease before this one."""
    after = {} if lease.expired_at is None else {"after": lease.expired_at.isoformat()}
    return Entry("run.resumed", f"@resumed.{lease.epoch}", result={"worker": lease.owner, **after})


def give_back(lease: Lease) -> int:
    """Release a run that is not driven now, and free its reservations."""
    entries = [] if lease.expired_at is None else [resumed(lease)]
    return ledger.settled(lease, entries, partial(requeue, lease, entries), ends=True)


def set_aside(lease: Lease, error: NotDrivable) -> tuple[Settled, list[Entry]]:
    """Block the run, release it with a delay, or end it if it is cancelled; returns the rows too."""
    return ledger.settled(lease, [], partial(_set_aside, lease, error), ends=True)


def _set_aside(lease: Lease, error: NotDrivable) -> tuple[Settled, list[Entry]]:
    if lease.run.cancel_requested_at is not None:  # its end needs no code
        return _end_undriven(lease)
    if not error.block:
        entries = [] if lease.expired_at is None else [resumed(lease)]
        first = requeue(lease, entries, delay_s=conf.SWEEP_S, error=error_of(error.cause))
        return Settled(first, Status.PENDING), entries
    return _send_back(lease, Outcome.of_block(error.cause, lease))


def _end_undriven(lease: Lease) -> tuple[Settled, list[Entry]]:
    outcome = Outcome.of_cancel(lease.run.cancel_reason or "cancelled")
    entries = outcome.entries(lease)
    first, hints = endings.finish(lease, outcome.status, entries, error=outcome.error, entangled=True)
    return Settled(first, outcome.status, hints), entries


def error_of(error: BaseException | None) -> dict[str, Any]:
    """`{type, message}`, and `diff` of a DeterminismError."""
    if isinstance(error, HandlerError):
        error = error.cause
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return error_of(error.exceptions[0])
    kind = getattr(error, "type", None) if isinstance(error, KernelError) else None
    as_json: dict[str, Any] = {"type": kind or type(error).__name__, "message": redact(message_of(error))}
    if isinstance(error, DeterminismError) and error.diff:
        as_json["diff"] = error.diff
    return dict(storable(as_json))


WAYS_OUT = (
    "Three ways out: deploy the earlier code, then retry the run; or let runs that have passed here make the earlier "
    "calls, by `if ctx.patched(name):` around the new code, then retry the run; or fork the run before this entry and "
    "cancel it"
)


def with_ways_out(error: dict[str, Any]) -> dict[str, Any]:
    """The error of a run that is blocked because code and journal differ, with what an operator can do."""
    is_known = error.get("type") != DeterminismError.__name__ or WAYS_OUT in error["message"]
    return error if is_known else {**error, "message": f"{error['message']}. {WAYS_OUT}"}


def returned_by(ctx: Any, returned: Any) -> Any:
    """The value of the run: its last reply, or what its code has returned."""
    return ctx.output if ctx.replied and not isinstance(returned, ResultText) else returned


def is_text(value: Any) -> bool:
    """Whether `as_output` of the value is cheap and runs no code of the site."""
    return value is None or type(value) is str or (type(value) is dict and [*map(type, value.values())] == [str])


def as_output(value: Any, schema: dict[str, Any] | None = None) -> str:
    """A run's output: a string as it is, `{"text": …}` as its text, any other value as JSON; JSON of the `schema` that
    the request asked for. Raises NotJson and ResultInvalidError."""
    try:
        output = storable(to_jsonable_python(value, fallback=plain))
    except Exception as error:
        raise NotJson(value, error) from error
    if schema is not None:
        return str(fitted(schema, value if isinstance(value, ResultText) else output))
    if value is None:
        return ""
    if isinstance(value, str):
        return str(output)
    if isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], str):
        return str(output["text"])
    return to_json(output).decode()
