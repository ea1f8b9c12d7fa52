"""The gate of one lease between an agent's code and its effects: it starts, parks and stops them.

An outcome that ends the lease (retry, block, suspend, drain, lost) is never raised into the agent's code as an ordinary
exception, which the code could swallow: the call is parked, other open effects finish and are recorded, and then
SuspendInterrupt unwinds every parked task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, auto
from typing import Any

from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease.facts import Facts
from ravi_django.engine.lease.order import Turnstile
from ravi_django.engine.lease.paths import Branches, Parked, inside as _inside
from ravi_django.kernel import (
    CancellationToken,
    LeaseLostError,
    SuspendInterrupt,
    TransientError,
    UncertainEffectError,
)

log = logging.getLogger("ravi.gate")

UNWIND_S = 1.0  # for the agent's main task to end after an unwinding has started
LOOK_S = 1.0  # between two checks of code that neither goes on nor may be suspended yet
GRACE_S = 1.0  # before a run with several tasks is suspended: one of them may wait for something that is no call of ctx
TEST_GRACE_S = 0.01  # the same in an engine of `ravi_django.testing`


class NotRenewed(LeaseLostError):
    """The lease may have expired: the effect has not started."""


class NotRecorded(LeaseLostError):
    """The database has refused the rows of an effect for a permanent reason."""


class NotDue(Exception):
    """Raised in a write's transaction: the ask must not time out now. `until`: its new deadline; None: it has ended."""

    def __init__(self, until: datetime | None) -> None:
        self.until = until
        super().__init__()


class NotStanding(Exception):
    """Raised in a write's transaction: the sticky decision was revoked or replaced after it was read."""


class TooManyRequests(Exception):
    """Raised in a write's transaction: the run has as many requests of this kind, through this tool, as it may."""


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

    kind: str  # message, timer, signal, child, request or provider, as `waiting_on` shows it
    name: str  # of the signal or model, or the id of the run or the request
    met: Callable[[], Any]  # returns the result of the wait, None while it is not met
    until: datetime | None = None  # the wait is met at this time at the latest

    def as_json(self) -> dict[str, Any]:
        named = "name" if self.kind in ("signal", "timer", "provider") else "id"
        until = self.until and self.until.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"kind": self.kind, named: self.name, "until": until}


class Gate:
    def __init__(self, lease: Lease, journal: Journal, facts: Facts, *, in_test: bool = False) -> None:
        self.lease = lease
        self.journal = journal
        self.facts = facts
        self.token = CancellationToken()
        self.renewed_at = lease.asked_at  # set by the heartbeat
        self.gives_up = False  # the process has drained: a failed append is not repeated
        self.repeats = 0  # failed appends that are being repeated
        self.stop: Stop | None = None
        self.unwinding = False  # SuspendInterrupt unwinds the agent's code
        self.on_stuck: Callable[[], None] = lambda: None  # cancels a main task that waits for unwound tasks
        self._open: set[object] = set()  # effects that have started and not ended
        self._parked: list[Parked] = []  # in the order of parking
        self._cut: list[Parked] = []  # waits of tool calls that timed out: the tool waits again in the next lease
        self.suspended_on: list[Wait] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._same: tuple[object, float] = (None, 0.0)  # the reason that the run cannot suspend, and since when
        self._grace_s = TEST_GRACE_S if in_test else GRACE_S
        self._moves = 0  # of the code, as far as it calls ctx
        self.branches = Branches(self._at_rest)
        self.turnstile = Turnstile(lease.run.next_seq, journal, self.branches)
        journal.alone = lambda: self.branches.alone
        journal.on_advance = self.poke
        expires = lease.run.lease_expires_at
        self.claimed_at = expires - timedelta(seconds=conf.LEASE_S) if expires else datetime.now(UTC)

    def present(self) -> datetime:
        """Now, by the database's clock: the time of the claim plus the time since."""
        return clock.fixed() or self.claimed_at + timedelta(seconds=time.monotonic() - self.lease.asked_at)

    # --------------------------------------------------------------------------------------------- perform

    @asynccontextmanager
    async def performing(self, *, flushed: bool = True) -> AsyncIterator[None]:
        """Around an effect that is made now. An error that ends the lease parks the call and is not raised. Results
        that wait for the next commit are committed first, unless not `flushed`: for what may be repeated."""
        try:
            if flushed:
                await self.flush()
            await self._may_begin()  # nothing may come between this check and the effect
            with self.busy():
                yield
        except TransientError as error:
            self._stop_with(Stop(Stop.Kind.RETRY, error))
        except LeaseLostError as error:
            self._stop_with(Stop(Stop.Kind.LOST, error))
        except UncertainEffectError as error:
            self._stop_with(Stop(Stop.Kind.BLOCK, error))
        if self.stop is not None and self.stop.kind > Stop.Kind.DRAIN:
            await self.park()

    async def flush(self) -> None:
        """Commit the results that wait for the next commit. Raises LeaseLostError."""

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around work of the runtime, during which the run is not idle."""
        work = object()
        self._open.add(work)
        inside = _inside.set((*_inside.get(), work))
        try:
            yield
        finally:
            _inside.reset(inside)
            self._open.discard(work)
            self._moved()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Around the repetition of an append: the run begins no new effect and is not idle."""
        self.repeats += 1
        try:
            yield
        finally:
            self.repeats -= 1
            self.poke()

    async def _may_begin(self) -> None:
        self.token.check()
        while self.repeats and self.stop is None:
            await self._park(Wait("append", "", lambda: None))
        if self.stop is None:
            try:
                self.check_awake()
            except LeaseLostError as error:
                self._stop_with(Stop(Stop.Kind.LOST, error))
        if self.must_park(nested=self.nested):
            await self.park()

    @property
    def nested(self) -> bool:
        """Whether this code runs inside of an open effect."""
        return bool(_inside.get())

    def must_park(self, *, nested: bool) -> bool:
        """While the worker drains, only effects inside of an open tool call may begin."""
        return self.stop is not None and not (nested and self.stop.kind == Stop.Kind.DRAIN)

    @property
    def is_awake(self) -> bool:
        """Whether the last renewal of the lease is recent enough to act on it."""
        return bool(time.monotonic() - self.renewed_at <= conf.LEASE_S * 0.8)

    def check_awake(self) -> None:
        """Call it right before an external call: a worker that was asleep must not act on a lease that may be over.
        Raises NotRenewed."""
        if not self.is_awake:
            raise NotRenewed(self.lease.run_id, self.lease.epoch)

    # --------------------------------------------------------------------------------------------- wait

    async def wait(self, wait: Wait) -> Any:
        """Park until the wait is met; returns its result. If the run suspends first, this never returns: the next
        lease's replay waits here again.

        No wait is met while recorded results are left: those came first in the first execution.
        """
        while True:
            self.token.check()
            if self.stop is None and not self.journal.replaying and (result := wait.met()) is not None:
                return result
            await self._park(wait)

    def poke(self) -> None:
        """Check again whether waits are met."""
        self._moved()
        for parked in [] if self.journal.replaying else list(self._parked):
            if parked.wait is not None and not parked.future.done():
                parked.future.set_result(None)

    @property
    def waits_for(self) -> list[Wait]:
        return [parked.wait for parked in self._parked if parked.wait is not None]

    def _set_alarm(self) -> None:
        """Wake for a timer that is due while other effects keep the run from suspending."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = min((wait.until for wait in self.waits_for if wait.until is not None), default=None)
        if due is not None and self.stop is None:
            delay = max(0.0, (due - self.present()).total_seconds())
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(min(delay, 3600.0) + 0.001, self.poke, context=Context())

    # --------------------------------------------------------------------------------------------- stop

    def check_may_go_on(self) -> None:
        """Unwind code between two effects if the lease has to end. Not while another effect of the run is open: the
        unwinding would cancel it."""
        if self.stop is None or self._open:
            return
        self._begin_unwinding()
        raise SuspendInterrupt

    def _begin_unwinding(self) -> None:
        if not self.unwinding:
            asyncio.get_running_loop().call_later(UNWIND_S, self.on_stuck)
            cut = [parked.wait for parked in self._cut if parked.wait is not None and self._open & {*parked.inside}]
            self.suspended_on = [*self.waits_for, *cut]
            self.unwinding = True

    def drain(self) -> None:
        """Start no new effect; open ones may finish and be recorded."""
        self._stop_with(Stop(Stop.Kind.DRAIN))

    async def end(self, stop: Stop) -> None:
        """End the lease by `stop` once no effect is open. Never returns."""
        self._stop_with(stop)
        await self.park()

    def _stop_with(self, stop: Stop) -> None:
        if self.stop is None or self.stop.kind <= Stop.Kind.SUSPEND < stop.kind:
            self.stop = stop
        self._moved()

    async def park(self) -> None:
        """Wait for the unwinding. Never returns."""
        await self._park(None)

    async def _park(self, wait: Wait | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked = Parked(future, _inside.get(), wait)
        self._parked.append(parked)
        self._moved()
        if wait is not None:
            self._set_alarm()
        try:
            await future
        except asyncio.CancelledError:
            self._cut.append(parked)
            raise
        finally:
            self._parked.remove(parked)
            self._moved()

    def _all_wait(self, waiting: Sequence[Parked]) -> bool:
        """Whether every open effect waits for one of these calls, made inside of it."""
        return not self.repeats and self._open <= {effect for one in waiting for effect in one.inside}

    def _moved(self) -> None:
        self._moves += 1
        if self.stop is not None and self._parked and self._all_wait(self._parked):
            asyncio.get_running_loop().call_soon(self._unwind)
        if self._parked or self.turnstile.waiting:
            self.branches.ask()

    def _at_rest(self, at_rest: bool) -> None:
        """Hand out the next result. Suspend when only waits are left."""
        if self.branches.main is not None and self.branches.main.done():
            return  # the code has ended
        waiting = [*self._parked, *self.turnstile.waiting]
        if self.turnstile.hand_out() or not at_rest:
            self.branches.ask()
        elif not waiting or not self._all_wait(waiting):
            return
        elif self.stop is not None:
            self._give_up_turns()
        elif self.journal.replaying:  # no call asks for the next result
            if self._lasts(self.journal.next_seq, self.journal.patience_s) and not self.journal.pass_next():
                self._stop_with(Stop(Stop.Kind.BLOCK, self.journal.stalled()))
                self._give_up_turns()
        elif not self.turnstile.waiting and (self.branches.alone or self._lasts(self._moves, self._grace_s)):
            self._stop_with(Stop(Stop.Kind.SUSPEND))

    def _give_up_turns(self) -> None:
        """Unwind the calls that wait for their turn, with the parked ones."""
        if given_up := self.turnstile.give_up():
            self._parked += given_up
            self._moved()

    def _lasts(self, reason: object, seconds: float) -> bool:
        """Whether this reason has kept the run from suspending for so long; schedules another check."""
        loop = asyncio.get_running_loop()
        if self._same[0] != reason:
            self._same = (reason, loop.time())
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = loop.call_later(min(seconds, LOOK_S), self.branches.ask)
        return loop.time() - self._same[1] >= seconds

    def _unwind(self) -> None:
        if self.stop is None or not self._all_wait(self._parked):
            return
        self._begin_unwinding()
        for parked in self._parked:
            if not parked.future.done():
                parked.future.set_exception(SuspendInterrupt())

    @property
    def waits(self) -> bool:
        """Whether the innermost effect around this code waits for a parked call made inside of it."""
        inside = _inside.get()
        return bool(inside) and any(inside[-1] in parked.inside for parked in [*self._parked, *self._cut])

    def close(self) -> None:
        """The agent's code has ended: tasks that it left begin no effect."""
        self.branches.main = None
        for timer in (self._alarm, self._look_again):
            if timer is not None:
                timer.cancel()
        self.stop = self.stop or Stop(Stop.Kind.LOST, LeaseLostError(self.lease.run_id, self.lease.epoch))


@dataclass(frozen=True, slots=True)
class Handoff:
    """The agent that takes a run over, and its first messages."""

    path: str  # of the call that hands over
    agent: str  # the address of the new agent
    version: int | None  # of its spec; None: it is code
    messages: tuple[dict[str, Any], ...]  # the task, then the run's messages that were not answered
    metadata: dict[str, Any]  # of the run, with the variables of an agent that is stored in the database
    depth: dict[str, int] = field(default_factory=dict)  # see `as_depth` in `lease/inbox.py`


class ToolPaused(BaseException):
    """A tool has returned a pause. Not an error: it passes the middlewares around the call, and the call then closes
    the attempt."""

    def __init__(self, pause: Any) -> None:
        self.pause = pause
        super().__init__(type(pause).__name__)


HANDOFF = "run.handoff"  # the kind of a handoff's row, refused or not
