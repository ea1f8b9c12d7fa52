"""What the parts of one lease share: the journal, events that it does not have yet, open tool calls, and why it ends.

An outcome that ends the lease (retry, block, suspend, drain, lost) is a `Stop`. It is never raised into the agent's
code as an ordinary exception, which the code could swallow; see `waits.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, auto
from functools import cached_property
from typing import Any

from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease import tool_limits
from ravi_django.engine.lease.run_tasks import WaitingCall, inside
from ravi_django.engine.lease.tool_limits import ToolUsage
from ravi_django.engine.lease.wake_state import WakeState
from ravi_django.kernel import CancellationToken, InvalidInputError, LeaseLostError, Message

PROVIDER = "provider"  # the kind of a wait for a model's provider
HANDOFF = "run.handoff"  # the kind of a handoff's row, refused or not
RETENTION = "@retention."  # path prefix before an agent's address: its turns of this run are deleted with the run


class NotRenewed(LeaseLostError):
    """The lease may have expired: the effect has not started."""


class NotRecorded(LeaseLostError):
    """The database has refused the rows of an effect for a permanent reason."""


class NotExpired(Exception):
    """Raised in a write's transaction: the ask must not time out now. `until`: its new deadline; None: it has ended."""

    def __init__(self, until: datetime | None) -> None:
        self.until = until
        super().__init__()


class StickyRevoked(Exception):
    """Raised in a write's transaction: the sticky decision was revoked or replaced after it was read."""


class TooManyRequests(Exception):
    """Raised in a write's transaction: the run has as many requests of this kind, through this tool, as it may."""


class ToolPaused(BaseException):
    """A tool has returned a pause. Not an error: it passes the middlewares around the call, and the call then closes
    the attempt."""

    def __init__(self, pause: Any) -> None:
        self.pause = pause
        super().__init__(type(pause).__name__)


@dataclass(frozen=True, slots=True)
class Handoff:
    """The agent that takes a run over, and its first messages."""

    path: str  # of the call that hands over
    agent: str  # the address of the new agent
    version: int | None  # of its spec; None: it is code
    messages: tuple[dict[str, Any], ...]  # the task, then the run's messages that were not answered
    metadata: dict[str, Any]  # of the run, with the variables of an agent that is stored in the database
    depth: dict[str, int] = field(default_factory=dict)  # see `as_depth` in `lease/inbox.py`


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the lease ends before the agent does."""

    class Kind(IntEnum):
        """The first reason stays, but DRAIN and SUSPEND are replaced by those below."""

        DRAIN = auto()  # the worker ends: effects inside of open tool calls may still begin
        SUSPEND = auto()
        RETRY = auto()
        CONTINUE = auto()
        HANDOFF = auto()
        BLOCK = auto()
        FAIL = auto()
        LOST = auto()

    kind: Kind
    error: Exception | None = None
    state: Any = None  # of CONTINUE: JSON, the `ctx.state` of the next generation
    depth: dict[str, int] = field(default_factory=dict)  # of CONTINUE, see `as_depth` in `lease/inbox.py`
    handoff: Handoff | None = None  # of HANDOFF


@dataclass(slots=True, eq=False)
class Wait:
    """A condition that a call waits for. The run wakes when one of its waits is met."""

    kind: str  # message, timer, signal, child, request, client_tool or provider, as `waiting_on` shows it
    name: str  # of the signal or model, or the id of the run or the request
    met: Callable[[], Any]  # returns the result of the wait, None while it is not met
    until: datetime | None = None  # the wait is met at this time at the latest
    limit: int | None = None  # of "provider": the row of ModelLimit, whose permits wake the run before the time

    def as_json(self) -> dict[str, Any]:
        named = "name" if self.kind in ("signal", "timer", PROVIDER) else "id"
        until = self.until and self.until.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"kind": self.kind, named: self.name, "until": until}


class Mailbox:
    """The messages of this generation that were read, and up to which one the code was given them."""

    def __init__(self, messages: list[tuple[int, Message]], *, limit: int | None = None, more: bool = False) -> None:
        self.messages = messages  # by position, oldest first
        self.limit = limit  # how many messages of a backlog are read at once
        self.more = more  # there are messages after those that were read
        self.read_upto: int | None = None  # the last message that the code was given

    @property
    def last(self) -> int:
        """The position of the last message that was read from the database; 0: there is none."""
        return self.messages[-1][0] if self.messages else 0

    @property
    def has_unread(self) -> bool:
        """Whether there are messages that the code was not given."""
        return self.more or self.last > (self.read_upto or 0)

    def unread(self, upto: int | None = None) -> list[tuple[int, Message]]:
        after = self.read_upto or 0
        return [pair for pair in self.messages if after < pair[0] and (upto is None or pair[0] <= upto)]

    def add(self, messages: Iterable[tuple[int, Message]], more: bool) -> None:
        """Add messages read from the database, without those that are known. `more`: there are later ones."""
        known, rows = self.last, list(messages)
        self.messages += [pair for pair in rows if pair[0] > known]
        if not rows or rows[-1][0] >= known:
            self.more = more

    def give(self, upto: int) -> list[Message]:
        """The unread messages up to a position, which are read from now on."""
        messages = [message for _, message in self.unread(upto)]
        self.read_upto = max(self.read_upto or 0, upto) or None
        return messages


class LeaseState:
    def __init__(
        self,
        lease: Lease,
        journal: Journal,
        mailbox: Mailbox,
        wake_state: WakeState,
        *,
        noted: Iterable[str] = (),
        summaries: frozenset[int] = frozenset(),
    ) -> None:
        self.lease = lease
        self.journal = journal
        self.mailbox = mailbox
        self.wake_state = wake_state
        self.noted = set(noted)  # paths of system rows that are written
        self.summaries = summaries  # see `Loaded`
        self.token = CancellationToken()
        self.stop: Stop | None = None
        self.running: set[object] = set()  # effects that have started and not ended
        self.repeats = 0  # failed appends that are being repeated
        self.gives_up = False  # the process has drained: a failed append is not repeated
        self.attempts = lease.run.attempts  # transient failures in a row
        self.asked: dict[str, str | None] = {}  # by path of each call made in this lease: the digest of its arguments
        self.started: dict[str, Entry | Recorded] = {}  # at-most-once effects that have started and have no result
        self.uncertain: dict[str, Entry] = {}  # those of them that a person decides on
        self.requested: dict[str, str] = {}  # requests that this lease has opened
        self.paused: dict[str, dict[str, Any]] = {}  # the last pause of each tool call that continues after one
        self.may_have_dependents = lease.run.generation > 0 or journal.has_kind("child.spawned", "request.opened")
        self.memo: dict[str, Any] = {}  # what a feature computes once in a lease, by its own key
        self.renewed_at = lease.asked_at
        expires = lease.run.lease_expires_at
        self._claimed_at = expires - timedelta(seconds=conf.LEASE_S) if expires else datetime.now(UTC)

    def present(self) -> datetime:
        """Now, by the database's clock: the time of the claim plus the time since."""
        return clock.fixed() or self._claimed_at + timedelta(seconds=time.monotonic() - self.lease.asked_at)

    # ------------------------------------------------------------------------------------ the age of the lease

    def renewed(self, asked_at: float) -> None:
        """The heartbeat has renewed the lease, by a statement that was sent at this time of `time.monotonic`."""
        self.renewed_at = asked_at

    @property
    def is_awake(self) -> bool:
        """Whether the last renewal of the lease is recent enough to act on it."""
        return bool(time.monotonic() - self.renewed_at <= conf.LEASE_S * 0.8)

    def check_awake(self) -> None:
        """Call it right before an external call: a worker that was asleep must not act on a lease that may be over.
        Raises NotRenewed."""
        if not self.is_awake:
            raise NotRenewed(self.lease.run_id, self.lease.epoch)

    # ------------------------------------------------------------------------------------------------- its end

    def end_by(self, stop: Stop) -> None:
        if self.stop is None or self.stop.kind <= Stop.Kind.SUSPEND < stop.kind:
            self.stop = stop

    def reopen(self) -> None:
        """Let the engine's own waits begin, after the agent's code has ended."""
        if self.stop is not None and self.stop.kind is Stop.Kind.LOST:
            self.stop = None

    def repeating(self, change: int) -> None:
        """Count the failed appends that are being repeated."""
        self.repeats += change

    def give_up(self) -> None:
        """The process has drained: a failed append is not repeated."""
        self.gives_up = True

    @property
    def nested(self) -> bool:
        """Whether this code runs inside of an open effect."""
        return bool(inside.get())

    def must_park(self, *, nested: bool) -> bool:
        """While the worker drains, only effects inside of an open tool call may begin."""
        return self.stop is not None and not (nested and self.stop.kind == Stop.Kind.DRAIN)

    def all_wait(self, waiting: Iterable[WaitingCall]) -> bool:
        """Whether every open effect waits for one of these calls, made inside of it."""
        return not self.repeats and self.running <= {effect for call in waiting for effect in call.inside}

    @property
    def last_attempt(self) -> bool:
        """Whether the next transient error is final: it is recorded, and the agent gets it."""
        return self.attempts + 1 >= int(conf.MAX_ATTEMPTS)

    def count_attempts(self, attempts: int) -> None:
        self.attempts = attempts

    def has_dependents(self) -> None:
        """Call it before the commit of a child or a request: it may stand although the call is cancelled over it."""
        self.may_have_dependents = True

    @property
    def retains(self) -> bool:
        """Whether all turns of the run are known to outlive it. The notes of earlier generations are not known here."""
        return self.lease.run.generation == 0 and not any(path.startswith(RETENTION) for path in self.noted)

    # ---------------------------------------------------------------------------------------------- tool calls

    @cached_property
    def tool_usage(self) -> ToolUsage:
        """The usage of the run's tool calls."""
        return ToolUsage.of(self.journal.recorded(tool_limits.KIND))

    def left_open(self) -> dict[str, Entry | Recorded]:
        """At-most-once effects that have started and have no result, by path."""
        return {**self.journal.open_started, **self.started, **self.uncertain}

    def close_call(self, path: str) -> None:
        """Forget a tool call that has its result."""
        for calls in (self.started, self.uncertain, self.paused):
            calls.pop(path, None)
        self.journal.open_started.pop(path, None)

    def may_suspend(self, path: str) -> bool:
        """Whether a wait at this path may suspend the run. Not inside an at-most-once tool, see `check_may_wait`."""
        return not any(path.startswith(f"{begun}/") for begun in self.started)

    def check_may_wait(self, path: str) -> None:
        """Raise InvalidInputError inside an at-most-once tool: a wait would call it again."""
        for begun in self.started:
            if path.startswith(f"{begun}/"):
                raise InvalidInputError(
                    f"the tool at {begun!r} is at-most-once and cannot wait: it would be called again after the "
                    "wait. Wait before it in the agent's code, or make the tool idempotent",
                    field="effect",
                )
