"""The gate between an agent's code and the world, for one lease: what may begin, what waits, how it all stops.

An outcome that ends the lease (retry, block, suspend, drain, lost) is never raised into the agent's code as an ordinary
exception, which it could swallow: the call is parked, other open effects finish and are recorded, and then
SuspendInterrupt unwinds every parked task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ravi_django.conf import conf
from ravi_django.kernel import (
    CancellationToken,
    DeterminismError,
    LeaseLostError,
    SuspendInterrupt,
    TransientError,
    UncertainEffectError,
)
from ravi_django.runtime import clock
from ravi_django.runtime.replay import SETTLE_TURNS, Journal
from ravi_django.runtime.store import Facts, Handoff, Lease

UNWIND_S = 1.0  # after an unwinding has begun, the agent's main task gets this long to see it

_inside: ContextVar[tuple[object, ...]] = ContextVar("ravi_inside", default=())  # the open effects around this code


class NotRenewed(LeaseLostError):
    """The lease may be over: what was about to begin has not begun."""


class NotRecorded(LeaseLostError):
    """The database has refused the rows of an effect, for a reason that no repetition changes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the lease ends before the agent does: retry, block, fail, suspend, continue, handoff, drain or lost."""

    kind: str
    error: Exception | None = None
    messages: tuple[dict[str, Any], ...] = ()  # of "continue": what the next generation begins with
    carries: dict[str, Any] | None = None  # and is given before all others
    trail: dict[str, int] | None = None  # the publications behind it, see `hops`
    handoff: Handoff | None = None  # of "handoff"


@dataclass(slots=True, eq=False)
class Wait:
    """A condition that a call waits for. Any one that is met wakes the run."""

    kind: str  # message, timer, signal, child or request, as `waiting_on` shows it
    name: str  # of the signal, or the id of the run or the request
    met: Callable[[], Any]  # what has come of it; None while nothing has
    until: datetime | None = None  # met then, at the latest

    def shown(self) -> dict[str, Any]:
        named = "name" if self.kind in ("signal", "timer") else "id"
        return {"kind": self.kind, named: self.name, "until": _z(self.until) if self.until else None}


def _z(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True, eq=False)
class _Parked:
    """A call that goes no further now: it waits, or the lease ends."""

    future: asyncio.Future[None]
    inside: tuple[object, ...]  # the open effects around it: they wait for it
    wait: Wait | None = None


class Gate:
    def __init__(self, lease: Lease, journal: Journal, facts: Facts) -> None:
        self.lease = lease
        self.journal = journal
        self.facts = facts
        self.token = CancellationToken()
        self.renewed_at = lease.asked_at  # set by the heartbeat
        self.gives_up = False  # the process has drained: an append that fails is not repeated
        self._repeating = 0  # appends that have failed and are repeated
        self.stop: Stop | None = None
        self.unwinding = False  # SuspendInterrupt is on its way through the agent's code
        self.on_stuck: Callable[[], None] = lambda: None  # ends a run whose main task waits for what was unwound
        self._open: set[object] = set()  # effects under way
        self._parked: list[_Parked] = []  # in the order in which they came
        self._cut: list[_Parked] = []  # waits whose tool call's time ran out: the tool waits on, in the next lease
        self.suspended_on: list[Wait] = []
        self._moves = 0  # rises with everything that happens here: a gate that is quiet for a while is idle
        self._alarm: asyncio.TimerHandle | None = None
        journal.on_replayed = self.poke
        journal.on_settled = self._moved
        expires = lease.run.lease_expires_at
        self.claimed_at = expires - timedelta(seconds=conf.LEASE_S) if expires else datetime.now(UTC)

    def present(self) -> datetime:
        """Now, by the database's clock: its time of the claim, and how long that is ago."""
        return clock.fixed() or self.claimed_at + timedelta(seconds=time.monotonic() - self.lease.asked_at)

    # --------------------------------------------------------------------------------------------- perform

    @asynccontextmanager
    async def performing(self) -> AsyncIterator[None]:
        """Around an effect that is made now. What ends the lease does not come out of here as an exception."""
        await self._may_begin()
        effect = object()
        self._open.add(effect)
        self._moves += 1
        inside = _inside.set((*_inside.get(), effect))
        try:
            yield
        except TransientError as error:
            self._stop_with(Stop("retry", error))
        except LeaseLostError as error:
            self._stop_with(Stop("lost", error))
        except UncertainEffectError as error:
            self._stop_with(Stop("block", error))
        finally:
            _inside.reset(inside)
            self._open.discard(effect)
            self._moved()
        if self.stop is not None and self.stop.kind != "drain":
            await self.park()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around work of the runtime itself: the run is not idle meanwhile."""
        work = object()
        self._open.add(work)
        self._moves += 1
        try:
            yield
        finally:
            self._open.discard(work)
            self._moved()

    @property
    def is_repeating(self) -> bool:
        return self._repeating > 0

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Around the wait between two tries of an append: the run begins no new effect, and is not idle."""
        self._repeating += 1
        try:
            yield
        finally:
            self._repeating -= 1
            self.poke()

    async def _may_begin(self) -> None:
        self.token.check()
        while self._repeating and self.stop is None:
            await self._park(Wait("append", "", lambda: None))
        if self.stop is None:
            try:
                self.check_awake()
            except LeaseLostError as error:
                self._stop_with(Stop("lost", error))
        if self.must_park(nested=self.nested):
            await self.park()

    @property
    def nested(self) -> bool:
        """Whether this code is inside of an open effect."""
        return bool(_inside.get())

    def must_park(self, *, nested: bool) -> bool:
        """What an open tool call needs to finish may begin while the worker drains, and nothing else."""
        return self.stop is not None and not (self.stop.kind == "drain" and nested)

    @property
    def is_awake(self) -> bool:
        """Whether the last renewal of the lease is young enough to act on it."""
        return bool(time.monotonic() - self.renewed_at <= conf.LEASE_S * 0.8)

    def check_awake(self) -> None:
        """Right before an external call: a worker that was asleep must not act on a lease that may be over. Raises
        NotRenewed."""
        if not self.is_awake:
            raise NotRenewed(self.lease.run_id, self.lease.epoch)

    # --------------------------------------------------------------------------------------------- wait

    async def wait(self, wait: Wait) -> Any:
        """Park until the condition is met; returns what has come of it. The run may suspend meanwhile: then this does
        not return, and another lease's replay comes here again.

        Nothing is met while recorded results are left: what happened first in the first execution comes first.
        """
        while True:
            self.token.check()
            if self.stop is None and not self.journal.replaying and (found := wait.met()) is not None:
                return found
            await self._park(wait)

    def poke(self) -> None:
        """Something may have come of the waits: look."""
        self._moved()
        for parked in list(self._parked):
            if parked.wait is not None and not parked.future.done():
                parked.future.set_result(None)

    @property
    def waits_for(self) -> list[Wait]:
        return [parked.wait for parked in self._parked if parked.wait is not None]

    def due(self) -> datetime | None:
        """When the first of the waits is over by itself."""
        return min((wait.until for wait in self.waits_for if wait.until is not None), default=None)

    def _set_alarm(self) -> None:
        """A timer may be due while other effects still keep the run here."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self.due()
        if due is not None and self.stop is None:
            delay = max(0.0, (due - self.present()).total_seconds())
            self._alarm = asyncio.get_running_loop().call_later(min(delay, 3600.0) + 0.001, self.poke)

    # --------------------------------------------------------------------------------------------- stop

    def check_may_go_on(self) -> None:
        """Unwind code that only looks by between two effects when the lease has to end. While an effect is open
        elsewhere in the run it goes on: the unwinding would tear that one down."""
        if self.stop is None or self._open:
            return
        if not self.unwinding:
            asyncio.get_running_loop().call_later(UNWIND_S, self.on_stuck)
            self.suspended_on = self._suspended_on()
            self.unwinding = True
        raise SuspendInterrupt

    def drain(self) -> None:
        """Start no new effect; what is open may finish and be recorded."""
        self._stop_with(Stop("drain"))

    async def end(self, stop: Stop) -> None:
        """Never returns: the lease ends as `stop` says, once no effect is open."""
        self._stop_with(stop)
        await self.park()

    def _stop_with(self, stop: Stop) -> None:
        if self.stop is None or (self.stop.kind in ("drain", "suspend") and stop.kind not in ("drain", "suspend")):
            self.stop = stop  # the first reason stays, but a drain or a suspension gives way to any other
        self._moved()

    async def park(self) -> None:
        """Never returns: wait for the unwinding."""
        await self._park(None)

    async def _park(self, wait: Wait | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked = _Parked(future, _inside.get(), wait)
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

    @property
    def _idle(self) -> bool:
        """Whether every open effect waits for a parked call of its own."""
        held = {effect for parked in self._parked for effect in parked.inside}
        return not self._repeating and self._open <= held

    def _moved(self) -> None:
        self._moves += 1
        if not self._parked or not self._idle:
            return
        if self.stop is not None:
            asyncio.get_running_loop().call_soon(self._unwind)
        elif not self.journal.busy:
            # A branch that has just gone on may be about to begin its next effect.
            asyncio.get_running_loop().call_soon(self._settle, self._moves, SETTLE_TURNS)

    def _settle(self, moves: int, turns: int) -> None:
        if moves != self._moves or self.stop is not None or self.journal.busy:
            return
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._settle, moves, turns - 1)
        elif self.journal.replaying:
            loop.call_later(self.journal.stall_s, self._stalled, moves)
        else:
            self._stop_with(Stop("suspend"))

    def _stalled(self, moves: int) -> None:
        """Everything waits, and recorded results are left that nobody asks for."""
        if moves != self._moves or self.stop is not None:
            return
        try:
            self.journal.check_all_asked()
        except DeterminismError as error:
            self._stop_with(Stop("block", error))

    def _unwind(self) -> None:
        if self.stop is None or not self._idle:
            return
        if not self.unwinding:
            asyncio.get_running_loop().call_later(UNWIND_S, self.on_stuck)
            self.suspended_on = self._suspended_on()
        self.unwinding = True
        for parked in self._parked:
            if not parked.future.done():
                parked.future.set_exception(SuspendInterrupt())

    def _suspended_on(self) -> list[Wait]:
        cut = [parked.wait for parked in self._cut if parked.wait is not None and self._open & {*parked.inside}]
        return [*self.waits_for, *cut]

    @property
    def waits(self) -> bool:
        """Whether the effect that this code is inside of waits for a parked call of its own."""
        inside = _inside.get()
        return bool(inside) and any(inside[-1] in parked.inside for parked in [*self._parked, *self._cut])

    def close(self) -> None:
        """The agent's code is over: whatever it left behind begins nothing more."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.stop = self.stop or Stop("lost", LeaseLostError(self.lease.run_id, self.lease.epoch))
