"""The durable step: what one journaled call of a run costs, streamed and stored, with a model that answers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from asgiref.sync import sync_to_async
from django.db import connections

from benchmarks.agents import ANSWER, loop_agent
from benchmarks.raw_commit import RawCommit
from benchmarks.report import Figure
from ravi_django.models import Run
from ravi_django.runtime import Runtime

TIMEOUT_S = 120.0


@dataclass(slots=True)
class Steps:
    """Samples of runs of one length, in milliseconds."""

    turns: int
    wall: list[float] = field(default_factory=list)  # a step: from the run's claim to its end, over its calls
    whole: list[float] = field(default_factory=list)  # a step: from submit to the result in hand, over the calls
    cpu: list[float] = field(default_factory=list)  # a step: of this process, meanwhile
    raw: list[float] = field(default_factory=list)  # a raw commit

    @property
    def calls(self) -> int:
        return 2 * self.turns - 1


@asynccontextmanager
async def runtime() -> AsyncIterator[Runtime]:
    """A Runtime that leaves no database connection behind, its submitting thread's neither."""
    async with Runtime() as rt:
        yield rt
    await sync_to_async(connections.close_all)()


async def run_once(rt: Runtime, turns: int) -> str:
    """One whole run of that many turns; returns its id, raises when it does not complete."""
    run_id = await rt.submit(f"react/bench-loop-{turns}", "Add them all.")
    answer = await rt.result(run_id, timeout=TIMEOUT_S)
    assert answer == ANSWER, answer
    return run_id


async def sample(repetitions: Mapping[int, int], raw: RawCommit) -> list[Steps]:
    """`repetitions` of runs for each number of turns, raw commits before each."""
    async with runtime() as rt:
        found = []
        for turns, times in repetitions.items():
            await rt.register(loop_agent(turns))
            await run_once(rt, turns)  # prepares statements and fills caches
            steps = Steps(turns)
            for _ in range(times):
                steps.raw += raw.sample()
                await _time(rt, steps)
            found.append(steps)
        return found


async def _time(rt: Runtime, steps: Steps) -> None:
    cpu, begun = time.process_time(), time.perf_counter()
    run_id = await run_once(rt, steps.turns)
    steps.whole.append((time.perf_counter() - begun) * 1000 / steps.calls)
    steps.cpu.append((time.process_time() - cpu) * 1000 / steps.calls)
    run = await Run.objects.aget(id=run_id)
    assert run.started_at and run.finished_at
    steps.wall.append((run.finished_at - run.started_at).total_seconds() * 1000 / steps.calls)


async def sample_taken_over(repetitions: Mapping[int, int], raw: RawCommit) -> list[Steps]:
    """The steps of runs after a second runtime has taken them over half-way. Its replay counts. Short runs end."""
    found = []
    for turns, times in repetitions.items():
        if turns < 50:
            continue
        steps = Steps(turns)
        for _ in range(times):
            async with runtime() as first:
                await first.register(loop_agent(turns))
                run_id = await first.submit(f"react/bench-loop-{turns}", "Add them all.")
                while (await Run.objects.aget(id=run_id)).next_seq <= turns:
                    await asyncio.sleep(0.005)
            steps.raw += raw.sample()
            async with runtime() as second:
                left = 2 * turns - (await Run.objects.aget(id=run_id)).next_seq
                cpu, begun = time.process_time(), time.perf_counter()
                await second.result(run_id, timeout=TIMEOUT_S)
                steps.wall.append((time.perf_counter() - begun) * 1000 / left)
                steps.cpu.append((time.process_time() - cpu) * 1000 / left)
        found.append(steps)
    return found


def measure(repetitions: Mapping[int, int], raw: RawCommit) -> list[Figure]:
    samples = asyncio.run(sample(repetitions, raw))
    every_commit = [taken for steps in samples for taken in steps.raw]
    return [
        Figure("raw_commit", None, median(every_commit), "ms", 1.0),
        *(figure for steps in samples for figure in _figures(steps)),
        *(figure for steps in asyncio.run(sample_taken_over(repetitions, raw)) for figure in _taken_over(steps)),
    ]


def _figures(steps: Steps) -> list[Figure]:
    raw = median(steps.raw)
    timed = {
        "durable_step": median(steps.wall),
        "durable_step_least": min(steps.wall),
        "durable_step_whole_run": median(steps.whole),
    }
    return [
        *(Figure(name, steps.turns, value, "ms", value / raw) for name, value in timed.items()),
        Figure("durable_step_cpu", steps.turns, median(steps.cpu), "ms"),
        Figure("durable_step_cpu_least", steps.turns, min(steps.cpu), "ms"),
    ]


def _taken_over(steps: Steps) -> list[Figure]:
    least = min(steps.wall)
    return [
        Figure("taken_over_step_least", steps.turns, least, "ms", least / median(steps.raw)),
        Figure("taken_over_step_cpu_least", steps.turns, min(steps.cpu), "ms"),
    ]
