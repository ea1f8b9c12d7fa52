"""Start, park and stop the calls of an agent's code in one lease.

An outcome that ends the lease is never raised into the agent's code as an ordinary exception, which the code could
swallow: the call is parked, other open effects finish and are recorded, and then SuspendInterrupt unwinds every parked
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

from ravi_django.engine.lease import paths
from ravi_django.engine.lease.lease_state import LeaseState, Stop, Wait
from ravi_django.engine.lease.result_order import ResultOrder
from ravi_django.engine.lease.run_tasks import RunTasks, WaitingCall, inside as _inside
from ravi_django.engine.lease.stopwatch import waiting
from ravi_django.kernel import LeaseLostError, SuspendInterrupt, TransientError, UncertainEffectError

UNWIND_S = 1.0  # for the agent's main task to end after an unwinding has started
LOOK_S = 1.0  # between two checks of code that neither goes on nor may be suspended yet
GRACE_S = 1.0  # before a run with several tasks is suspended: one of them may wait for something that is no call of ctx
TEST_GRACE_S = 0.01  # the same in an engine of `ravi_django.testing`
TURNS = 100  # of a loop without a visible ready queue (uvloop): after so many the code counts as at rest
SPIN_TURNS = 10_000  # after so many, code that polls with `sleep(0)` no longer delays results

_checking: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Waits, None]] = WeakKeyDictionary()


class Waits:
    def __init__(self, state: LeaseState, *, in_test: bool = False) -> None:
        self.state = state
        self.tasks = RunTasks()
        self.order = ResultOrder(state.lease.run.next_seq, state.journal, self.tasks)
        self.unwinding = False  # SuspendInterrupt unwinds the agent's code
        self.suspended_on: list[Wait] = []
        self._parked: list[WaitingCall] = []  # in the order of parking
        self._cut: list[WaitingCall] = []  # waits of tool calls that timed out: the tool waits again in the next lease
        self._alarm: asyncio.TimerHandle | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._same: tuple[object, float] = (None, 0.0)  # the reason that the run cannot suspend, and since when
        self._grace_s = TEST_GRACE_S if in_test else GRACE_S
        self._moves = 0  # of the code, as far as it calls ctx
        self._turns = 0  # of the loop since the last `check_idle_soon`

    # --------------------------------------------------------------------------------------------- perform

    @asynccontextmanager
    async def effect(self) -> AsyncIterator[None]:
        """Around an effect that is made now. An error that ends the lease parks the call and is not raised."""
        try:
            await self._may_begin()  # nothing may come between this check and the effect
            with self.busy():
                yield
        except TransientError as error:
            self.stop_with(Stop(Stop.Kind.RETRY, error))
        except LeaseLostError as error:
            self.stop_with(Stop(Stop.Kind.LOST, error))
        except UncertainEffectError as error:
            self.stop_with(Stop(Stop.Kind.BLOCK, error))
        if self.state.stop is not None and self.state.stop.kind > Stop.Kind.DRAIN:
            await self.park()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around work of the runtime, during which the run is not idle."""
        work = object()
        self.state.running.add(work)
        inside = _inside.set((*_inside.get(), work))
        try:
            yield
        finally:
            _inside.reset(inside)
            self.state.running.discard(work)
            self._moved()

    async def _may_begin(self) -> None:
        self.state.token.check()
        while self.state.repeats and self.state.stop is None:
            await self.park(Wait("append", "", lambda: None))
        if self.state.stop is None:
            try:
                self.state.check_awake()
            except LeaseLostError as error:
                self.stop_with(Stop(Stop.Kind.LOST, error))
        if self.state.must_park(nested=self.state.nested):
            await self.park()

    # --------------------------------------------------------------------------------------------- wait

    async def wait(self, wait: Wait, path: str = "") -> Any:
        """Park the call at `path` until the wait is met; returns its result. If the run suspends first, this never
        returns: the next lease's replay waits here again. Raises InvalidInputError inside an at-most-once tool.

        No wait is met while recorded results are left: those came first in the first execution.
        """
        state = self.state
        state.check_may_wait(path)
        with waiting():
            while True:
                state.token.check()
                if state.stop is None and not state.journal.replaying and (result := wait.met()) is not None:
                    return result
                await self.park(wait)

    def poke(self) -> None:
        """Check again whether waits are met."""
        self._moved()
        for parked in [] if self.state.journal.replaying else list(self._parked):
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
        if due is not None and self.state.stop is None:
            delay = max(0.0, (due - self.state.present()).total_seconds())
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(min(delay, 3600.0) + 0.001, self.poke, context=Context())

    # --------------------------------------------------------------------------------------------- stop

    def check_may_go_on(self) -> None:
        """Unwind code between two effects if the lease has to end. Not while another effect of the run is open: the
        unwinding would cancel it."""
        if self.state.stop is None or self.state.running:
            return
        self._begin_unwinding()
        raise SuspendInterrupt

    def unwind_with(self, stop: Stop) -> None:
        """Begin to unwind without waiting for open effects: the caller raises SuspendInterrupt."""
        self.stop_with(stop)
        self._begin_unwinding()

    def _begin_unwinding(self) -> None:
        if not self.unwinding:
            asyncio.get_running_loop().call_later(UNWIND_S, self.tasks.cancel_main)
            cut = [call.wait for call in self._cut if call.wait is not None and self.state.running & {*call.inside}]
            self.suspended_on = [*self.waits_for, *cut]
            self.unwinding = True

    def drain(self) -> None:
        """Start no new effect; open ones may finish and be recorded."""
        self.stop_with(Stop(Stop.Kind.DRAIN))

    async def end(self, stop: Stop) -> None:
        """End the lease by `stop` once no effect is open. Never returns."""
        self.stop_with(stop)
        await self.park()

    def stop_with(self, stop: Stop) -> None:
        self.state.end_by(stop)
        self._moved()

    async def park(self, wait: Wait | None = None) -> None:
        """Wait for the unwinding, or until the wait may be met. Without a `wait` it never returns."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked = WaitingCall(future, _inside.get(), wait)
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

    def _moved(self) -> None:
        self._moves += 1
        if self.state.stop is not None and self._parked and self.state.all_wait(self._parked):
            asyncio.get_running_loop().call_soon(self._unwind)
        if self._parked or self.order.waiting:
            self.check_idle_soon()

    def check_idle_soon(self) -> None:
        """Call `_on_idle` in a later turn of the loop: with True at rest, or with False if the code spins."""
        self._turns = 0
        self._look_next(asyncio.get_running_loop())

    def _look_next(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in _checking:
            _checking[loop] = {}
            loop.call_soon(_look, loop, context=Context())
        _checking[loop][self] = None

    def _look(self, ready: set[RunTasks | None] | None) -> None:
        self._turns += 1
        at_rest = self._turns >= TURNS if ready is None else self.tasks not in ready
        if at_rest or self._turns >= SPIN_TURNS:
            self._on_idle(at_rest)
        else:
            self._look_next(asyncio.get_running_loop())

    def _on_idle(self, at_rest: bool) -> None:
        """Deliver the next result. Suspend when only waits are left."""
        if self.tasks.main is not None and self.tasks.main.done():
            return  # the code has ended
        waiting = [*self._parked, *self.order.waiting]
        if self.order.deliver_next() or not at_rest:
            self.check_idle_soon()
        elif not waiting or not self.state.all_wait(waiting):
            return
        elif self.state.stop is not None:
            self._give_up_results()
        elif self.state.journal.replaying:  # no call asks for the next result
            if self._lasts(self.state.journal.next_seq, self.state.journal.patience_s):
                self.stop_with(Stop(Stop.Kind.BLOCK, self.state.journal.stalled(self.order.seqs)))
                self._give_up_results()
        elif not self.order.waiting and (self.tasks.alone or self._lasts(self._moves, self._grace_s)):
            self.stop_with(Stop(Stop.Kind.SUSPEND))

    def _give_up_results(self) -> None:
        """Unwind the calls that wait for their turn, with the parked ones."""
        if given_up := self.order.give_up():
            self._parked += given_up
            self._moved()

    def _lasts(self, reason: object, seconds: float) -> bool:
        """Whether this reason has kept the run from suspending for so long; schedules another check."""
        loop = asyncio.get_running_loop()
        if self._same[0] != reason:
            self._same = (reason, loop.time())
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = loop.call_later(min(seconds, LOOK_S), self.check_idle_soon)
        return loop.time() - self._same[1] >= seconds

    def _unwind(self) -> None:
        if self.state.stop is None or not self.state.all_wait(self._parked):
            return
        self._begin_unwinding()
        for parked in self._parked:
            if not parked.future.done():
                parked.future.set_exception(SuspendInterrupt())

    @property
    def is_waited_for(self) -> bool:
        """Whether the innermost effect around this code waits for a parked call made inside of it."""
        inside = _inside.get()
        return bool(inside) and any(inside[-1] in parked.inside for parked in [*self._parked, *self._cut])

    def close(self) -> None:
        """The agent's code has ended: tasks that it left begin no effect."""
        self.tasks.close()
        for timer in (self._alarm, self._look_again):
            if timer is not None:
                timer.cancel()
        if self.state.stop is None:
            lease = self.state.lease
            self.state.end_by(Stop(Stop.Kind.LOST, LeaseLostError(lease.run_id, lease.epoch)))


def _look(loop: asyncio.AbstractEventLoop) -> None:
    """Check the ready callbacks once for all runs that wait for a check."""
    ready, checking = paths.with_ready_code(loop), _checking.pop(loop)
    try:
        while checking:
            waits, _ = checking.popitem()
            waits._look(ready)
    finally:
        for waits in checking:  # left by the error of another run
            waits._look_next(loop)
