"""One schedule of the simulation: some workers, one thread, one connection to PostgreSQL, and a seed that decides all.

Each worker is a real `Engine` on an event loop of its own. What it asks of the database waits in a queue, and the
scheduler picks what happens next: a call is performed, a hint arrives, a heartbeat, a sweep, somebody's signal. Nothing
runs beside it. When nothing is left to do, time goes on to the next timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from django.db import OperationalError

import ravi_django
from ravi_django.conf import conf
from ravi_django.kernel import KernelError, LeaseLostError
from ravi_django.models import HumanRequest, Run, Signal
from ravi_django.testing import FakeClock
from tests.acceptance.crash.story import Author, Story
from tests.sim import agent
from tests.sim.loop import Queued, QueuedTools, SimLoop
from tests.support import world as door
from tests.support.world import Appender, Engine

MOST = 600  # moves of one schedule; most take less than 100
SWEEP_S = 20.0
CALL_S = 0.01  # that a call of the database takes, on average


Move = tuple[str, Callable[[], None]]


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


@dataclass
class World:
    seed: int
    now: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    hints: list[UUID] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    stories: dict[str, Story] = field(default_factory=dict)
    signals: list[tuple[str, str]] = field(default_factory=list)  # that have still to be sent
    waits: bool = False  # somebody waits for a signal, or has

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.clock = FakeClock()
        self._start = self.clock.now
        self._made = 0
        self._dead: list[Worker] = []
        self._sweeps_at = 0.0
        self._faults = self.random.randint(0, 5)
        author = Author(self.random, agent.TOOLS)
        self._wanted = [author.story(depth=1) for _ in range(self.random.choice((1, 1, 2, 3)))]

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

    def hint(self, run_id: UUID | str) -> None:
        self.hints.append(run_id if isinstance(run_id, UUID) else UUID(run_id))

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
        if not moves:
            self._nobody_overslept()
        if not moves or self.random.random() < 0.02:
            self._wait()
            return bool(moves) or not self._is_over()
        name, move = self.random.choice(moves)
        self.trace.append(f"{self.now:.3f} {name}")
        move()
        self.pass_time(self.random.expovariate(1 / CALL_S))
        return True

    def _moves_of(self, workers: list[Worker]) -> Iterator[Move]:
        for worker in workers:
            for call in worker.calls:
                yield f"{worker.name} {_name(call)}", partial(self._perform, worker, call)
            if worker.beats_at <= self.now:
                yield f"{worker.name} beat", worker.beat

    def _moves_of_others(self) -> Iterator[Move]:
        for run_id in self.hints:
            yield "hint", partial(self._hint, run_id)
        for signal in self.signals:
            yield "signal", partial(self._signal, *signal)
        if self._sweeps_at <= self.now:
            yield "sweep", self._sweep
        if self._wanted:
            yield "submit", self._submit

    def _is_over(self) -> bool:
        if any(worker.engine.active for worker in self.workers):
            return False
        return not Run.objects.exclude(status__in=("completed", "failed", "cancelled")).exists()

    def _nobody_overslept(self) -> None:
        """No run sleeps on a signal that is there; a worker that is away may have it in hand."""
        if self.waits and all(worker.is_awake for worker in self.workers):
            for signal in Signal.objects.filter(consumed_at=None, run__status="suspended").select_related("run"):
                waited = {"kind": "signal", "name": signal.name}.items()
                assert not any(waited <= wait.items() for wait in signal.run.waiting_on), f"{signal.run_id} overslept"

    def _wait(self) -> None:
        """Until something is due."""
        due = [self._sweeps_at]
        for worker in self.workers:
            if worker.is_awake:
                due.append(worker.beats_at)
                if (timer := worker.loop.next_timer) is not None:
                    due.append(timer)
            else:
                due.append(worker.asleep_until)
        self.trace.append("wait")
        self.pass_time(max(0.001, min(due) - self.now))

    # --------------------------------------------------------------------------------------------- workers

    def _perform(self, worker: Worker, call: Any) -> None:
        worker.calls.remove(call)
        fault = self._fault()
        if fault:
            self.trace[-1] += f": {fault}"
        match fault:
            case "dies before":
                worker.calls.append(call)
                return self._replace(worker)
            case "dies behind":
                call.perform()
                return self._replace(worker)
            case "unacknowledged" if hasattr(call, "outcome"):
                call.function = _unacknowledged(call.function)
            case "falls asleep before" | "falls asleep behind":
                worker.asleep_until = self.now + self.random.uniform(0.3, 2.5) * conf.LEASE_S
                if fault == "falls asleep before":
                    worker.calls.append(call)
                    return
            case "is slow":
                self.pass_time(self.random.uniform(0.1, 1.2) * conf.LEASE_S)
            case "drains" if worker.draining is None:
                worker.drain()
        if not getattr(call, "is_over", False):
            call.perform()

    def _fault(self) -> str | None:
        if not self._faults or self.random.random() > 0.12:
            return None
        self._faults -= 1
        return self.random.choice(FAULTS)

    def _replace(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._dead.append(worker)
        self._hire()

    def _hint(self, run_id: UUID) -> None:
        kind = self.random.random()
        if kind > 0.05:  # else it comes twice
            self.hints.remove(run_id)
        if kind < 0.95:  # else it is lost
            worker = self.random.choice(self.workers)
            if worker.is_awake:
                worker.loop.call_soon(worker.engine.hint, run_id)

    def _sweep(self) -> None:
        self._sweeps_at = self.now + SWEEP_S
        door.sweeper_sweep(lambda runs: [self.hint(run) for run in runs] and [])  # it takes 12 queries
        for request in HumanRequest.objects.filter(status="pending", kind="uncertain"):
            self._decide(request)

    # ------------------------------------------------------------------------------------------ the others

    def _submit(self) -> None:
        story = self._wanted.pop()
        run = ravi_django.submit("react/sim", story.text)
        self.stories[str(run.id)] = story
        self.signals += [(str(run.id), f"go {step.number}") for step in story.steps() if step.tool == "wait"]
        self.waits = self.waits or bool(self.signals)

    def _signal(self, run_id: str, name: str) -> None:
        if self.random.random() < 0.3:  # it comes when it comes
            return
        ravi_django.signal(run_id, name, key=name)
        self.signals.remove((run_id, name))

    def _decide(self, request: HumanRequest) -> None:
        """Somebody looks what became of an uncertain effect."""
        number = request.arguments["number"]
        done = any((line["run"], line["number"]) == (str(request.run_id), number) for line in self.effects())
        try:
            if done:
                door.human_resolve(request.id, "happened", result=f"{request.tool} {number}")
            else:
                door.human_resolve(request.id, "run_again")
        except KernelError:  # not yet
            return

    @staticmethod
    def effects() -> list[dict[str, Any]]:
        return [line for line in agent.ledger if line["kind"] != "model"]


FAULTS = (
    "dies before",
    "dies behind",
    "unacknowledged",
    "falls asleep before",
    "falls asleep behind",
    "is slow",
    "drains",
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
