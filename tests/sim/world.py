"""One schedule of the simulation: some workers, one thread, one connection to PostgreSQL, and a seed that decides all.

Each worker is a real `Engine` on an event loop of its own. What it asks of the database waits in a queue, and the
scheduler picks what happens next: a call is performed, a hint arrives, a heartbeat, a sweep, or the site and its people
do something (`site.py`). Nothing runs beside it. When nothing is left to do, time goes on to the next timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError

from ravi_django.conf import conf
from ravi_django.kernel import LeaseLostError
from ravi_django.models import Run
from ravi_django.testing import FakeClock
from tests.sim import agent
from tests.sim.loop import Queued, QueuedTools, SimLoop
from tests.sim.site import Site
from tests.support import world as door
from tests.support.world import Appender, Engine

MOST = 1000  # moves of one schedule; most take less than 100
SWEEP_S = 20.0
CALL_S = 0.01  # average seconds of a database call
LATE_S = 40.0  # at most, of a late hint


class Move(NamedTuple):
    name: str
    do: Callable[[], None]


class Look(NamedTuple):
    """The rows as one query shows them."""

    open: bool  # a run has not ended
    due: bool  # a sweep may find something
    overslept: UUID | None  # a run that is suspended on a signal that is there
    failed: list[UUID]  # roots


# What a sweep finds nothing for is left out of the schedule.
_LOOK = """
SELECT EXISTS (SELECT FROM ravi_run WHERE status NOT IN ('completed', 'failed', 'cancelled')) AS open,
    EXISTS (
        SELECT FROM ravi_run WHERE status = 'pending'
        OR status = 'running' AND lease_expires_at < %(now)s OR status = 'suspended' AND wake_at <= %(now)s
        OR status = 'queued' AND NOT EXISTS (
            SELECT FROM ravi_run other WHERE other.session_id = ravi_run.session_id
            AND status IN ('pending', 'running', 'suspended', 'blocked')
        )
    ) AS due,
    (
        SELECT run.id FROM ravi_signal JOIN ravi_run run ON run.id = run_id
        WHERE consumed_at IS NULL AND status = 'suspended'
        AND waiting_on @> jsonb_build_array(jsonb_build_object('kind', 'signal', 'name', name)) LIMIT 1
    ) AS overslept,
    ARRAY (SELECT id FROM ravi_run WHERE status = 'failed' AND parent_id IS NULL) AS failed
"""


class Silent:
    """In the place of the publisher: nobody listens."""

    has_ended = False

    def open(self, run: Run) -> None: ...

    def emit(self, *frames: Any) -> None: ...

    async def begun(self, tree: str) -> None: ...

    async def sent(self, tree: str, timeout: float = 1.0) -> None: ...

    def close(self) -> None: ...


class Worker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.calls: list[Any] = []
        self.loop = SimLoop(lambda: world.now)
        self.asleep_until = 0.0
        self.beats_at = world.now + conf.HEARTBEAT_S
        self.engine: Engine = self.loop.run_until_complete(self._begin())
        self.engine.publisher = Silent()  # type: ignore[assignment]
        self.engine._tools = QueuedTools(self.calls)
        self.draining: asyncio.Task[None] | None = None

    async def _begin(self) -> Engine:
        made = Engine(name=self.name, on_promoted=self.world.hint, appender=Appender(Queued(self.calls), 0))
        made._close_threads = lambda: None  # type: ignore[method-assign]
        return made

    @property
    def is_awake(self) -> bool:
        return self.world.now >= self.asleep_until

    @property
    def has_to_beat(self) -> bool:
        """A heartbeat without a lease changes no run, and is left out."""
        if self.beats_at <= self.world.now and not self.engine.active:
            self.beats_at = self.world.now + conf.HEARTBEAT_S
            self.engine.heartbeat._tick()
        return self.beats_at <= self.world.now

    def beat(self) -> None:
        self.beats_at = self.world.now + conf.HEARTBEAT_S
        self.engine.heartbeat.beat()

    def drain(self) -> None:
        """As a deploy does."""
        self.draining = self.loop.create_task(self.engine.close(1.0))

    def bury(self) -> None:
        """Its code comes to its end without a database: else the coroutines would be torn down somewhere else."""
        calls, self.calls[:] = list(self.calls), []
        for pool in (self.engine.database, self.engine._tools):
            pool._give = _fail  # type: ignore[method-assign]
        for call in calls:
            _fail(call)
        later = self.world.now
        self.loop.set_clock(lambda: later)
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.settle()
            later += 10
        self.loop.close()


def _fail(call: Any) -> None:
    call.settle(None, LeaseLostError("of a dead worker", 0))


class World:
    """`query` reads rows as dictionaries."""

    def __init__(self, seed: int, query: Callable[..., list[dict[str, Any]]]) -> None:
        self.random = Random(seed)
        self.clock = FakeClock()
        self.now = 0.0
        self.workers: list[Worker] = []
        self.trace: list[str] = []
        self._query = query
        self._todo: list[tuple[float, Move]] = []  # of the site and its people, and hints: not before that time
        self._made = 0
        self._dead: list[Worker] = []
        self._sweeps_at = self.random.uniform(0, SWEEP_S)
        self._sweep_is_due = False
        self._seen: Look | None = None  # None: something has happened since
        self._faults = self.random.randint(0, 4)
        self.site = Site(self)

    # ----------------------------------------------------------------------------------------------- time

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance(seconds)

    def monotonic(self) -> float:
        return self.now

    # ---------------------------------------------------------------------------------------------- moves

    def play(self) -> None:
        """Until every run has ended and everything is quiet. Raises AssertionError when that does not come."""
        try:
            for _ in range(self.random.choice((1, 2, 2, 3))):
                self._hire()
            while self._move():
                if len(self.trace) > MOST:
                    raise AssertionError(f"not over after {MOST} moves")
        finally:
            for worker in [*self.workers, *self._dead]:
                worker.bury()

    def later(self, name: str, do: Callable[[], None], seconds: float = 0.0) -> None:
        """Offer a move once."""
        self._todo.append((self.now + seconds, Move(name, do)))

    def hint(self, run_id: UUID | str) -> None:
        self.later("hint", partial(self._hint, run_id if isinstance(run_id, UUID) else UUID(run_id)))

    def _hire(self) -> Worker:
        self._made += 1
        worker = Worker(self, f"w{self._made}")
        self.workers.append(worker)
        return worker

    def _move(self) -> bool:
        """False when all is over."""
        awake = [worker for worker in self.workers if worker.is_awake]
        for worker in awake:
            worker.loop.settle()
            if worker.draining is not None and worker.draining.done():
                self._replace(worker)
        moves = [*self._moves_of(awake), *self._moves_of_others()]
        if not moves and self._is_over():
            return False
        if not moves or self.random.random() < 0.02:
            self._wait()
            return True
        name, do = self.random.choice(moves)
        self.trace.append(f"{self.now:.3f} {name}")
        self._seen = None
        do()
        self.pass_time(self.random.expovariate(1 / CALL_S))
        return True

    def _moves_of(self, workers: list[Worker]) -> Iterator[Move]:
        for worker in workers:
            for call in worker.calls:
                yield Move(f"{worker.name} {_name(call)}", partial(self._perform, worker, call))
            if worker.has_to_beat:
                yield Move(f"{worker.name} beat", worker.beat)

    def _moves_of_others(self) -> Iterator[Move]:
        for todo in self._todo:
            if todo[0] <= self.now:
                yield Move(todo[1].name, partial(self._do, todo))
        if self._sweeps_at <= self.now:
            self._seen = None  # a lease may have run out
            self._sweep_is_due = self._look().due
            self._sweeps_at = self.now + SWEEP_S
        if self._sweep_is_due and (not self._todo or self.random.random() < 0.1):  # else a hint may be on its way
            yield Move("sweep", self._sweep)

    def _do(self, todo: tuple[float, Move]) -> None:
        self._todo.remove(todo)
        todo[1].do()

    def _look(self) -> Look:
        """Runs that have failed are retried. No run sleeps on a signal that is there; a worker that is away may have it
        in hand."""
        if self._seen is None:
            self._seen = Look(**self._query(_LOOK, {"now": self.clock.now})[0])
            for run_id in self._seen.failed:
                self.site.will_retry(run_id)
        return self._seen

    def _is_over(self) -> bool:
        seen = self._look()
        assert not (seen.overslept and all(worker.is_awake for worker in self.workers)), f"{seen.overslept} overslept"
        return not (seen.open or seen.failed or any(worker.engine.active for worker in self.workers))

    def _wait(self) -> None:
        """Until something is due."""
        due = [self._sweeps_at, *(at for at, _ in self._todo if at > self.now)]
        for worker in self.workers:
            if not worker.is_awake:
                due.append(worker.asleep_until)
                continue
            if worker.engine.active:
                due.append(worker.beats_at)
            if (timer := worker.loop.next_timer) is not None:
                due.append(timer)
        self.trace.append("wait")
        self.pass_time(max(0.001, min(due) - self.now))

    # --------------------------------------------------------------------------------------------- workers

    def _perform(self, worker: Worker, call: Any) -> None:
        worker.calls.remove(call)
        fault = self._fault()
        if fault:
            self.trace[-1] += f": {fault}"
            self._strike(fault, worker, call)
        if fault in ("dies before", "falls asleep before"):
            worker.calls.append(call)
        elif not getattr(call, "is_over", False):
            call.perform()
        if fault in ("dies before", "dies behind"):
            self._replace(worker)

    def _strike(self, fault: str, worker: Worker, call: Any) -> None:
        match fault:
            case "falls asleep before" | "falls asleep behind":
                worker.asleep_until = self.now + self.random.uniform(0.3, 2.5) * conf.LEASE_S
            case "unacknowledged" if not hasattr(call, "is_over"):  # a call of the database, and no tool
                call.function = _unacknowledged(call.function)
            case "is slow":
                self.pass_time(self.random.uniform(0.1, 1.2) * conf.LEASE_S)
            case "drains" if worker.draining is None:
                worker.drain()
            case "the database's clock steps":
                self.clock.advance(self.random.uniform(-0.5, 2.5) * conf.LEASE_S)
            case "the agent's code raises":
                agent.broken.append("it is broken")

    def _fault(self) -> str | None:
        if not self._faults or self.random.random() > 0.2:
            return None
        self._faults -= 1
        return self.random.choice(FAULTS)

    def _replace(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._dead.append(worker)
        self._hire()

    def _hint(self, run_id: UUID) -> None:
        kind = self.random.random()
        if kind > 0.95:
            return  # it is lost
        if kind < 0.05:
            self.hint(run_id)  # it comes twice
        elif kind < 0.1:
            return self.later("hint", partial(self._hint, run_id), self.random.uniform(0, LATE_S))
        worker = self.random.choice(self.workers)
        if worker.is_awake:
            worker.loop.call_soon(worker.engine.hint, run_id)

    def _sweep(self) -> None:
        self._sweep_is_due = False
        door.sweeper_sweep(lambda runs: [self.hint(run) for run in runs] and [])


FAULTS = (
    "dies before",
    "dies behind",
    "unacknowledged",
    "falls asleep before",
    "falls asleep behind",
    "is slow",
    "drains",
    "the database's clock steps",
    "the agent's code raises",
)


def _name(call: Any) -> str:
    function = call.function
    return getattr(function, "__qualname__", None) or type(function).__name__


def _unacknowledged(function: Callable[..., Any]) -> Callable[..., Any]:
    """It is committed, and then the connection is lost: the caller cannot know."""
    left = 1

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        answer = function(*args, **kwargs)
        if left:
            left -= 1
            raise OperationalError("deadlock detected")  # is repeated
        return answer

    return call
