"""Hundreds of runs in flight in one worker process, all of them waiting for a slow model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg
from django.contrib.auth import get_user_model
from django.db import transaction

from benchmarks import stack as stacks
from benchmarks.report import Figure
from benchmarks.stack import Stack, model_server, require, worker
from project.process import Child, ProcessError, wait_until
from ravi_django import submit
from ravi_django.models import Run, Status, WorkerProcess

TOKENS = 12
TIMEOUT_S = 120.0
PROMPT = "Answer in a few words."


@dataclass(frozen=True, slots=True)
class Flight:
    """What so many runs at once took."""

    runs: int
    peak: int  # how many of them were between claim and end at one moment
    submit_s: float  # from the first submit to the last one's return
    wall_s: float  # from the first submit to the end of the last run
    started_s: float  # from the first claim to the end of the last run
    cpu_s: float  # of the worker process, meanwhile
    memory_mb: float  # of the worker process, resident, at most
    idle_mb: float  # the same before the first run
    connections: int  # of the worker to the database, at most


class Watch(threading.Thread):
    """Samples the worker until told to stop."""

    def __init__(self, url: str, pid: int) -> None:
        super().__init__(name="bench-watch", daemon=True)
        self._connection = psycopg.connect(url, autocommit=True)
        self._process = psutil.Process(pid)
        self._stop_asked = threading.Event()
        self.connections, self.memory = 0, 0

    def run(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        while not self._stop_asked.wait(0.1):
            row = self._connection.execute(query, (stacks.WORKER_NAME,)).fetchone()
            self.connections = max(self.connections, row[0] if row else 0)
            self.memory = max(self.memory, self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_asked.set()
        self.join(5)
        self._connection.close()


def fly(stack: Stack, child: Child, agent: str, runs: int) -> Flight:
    """Submit `runs` runs at once, one session each, and wait for the last. Raises ProcessError when one fails."""
    user = get_user_model().objects.get_or_create(username="bench")[0]
    assert child.pid
    process = psutil.Process(child.pid)
    idle = process.memory_info().rss
    with Watch(stack.database_url, child.pid) as watch:
        cpu = _cpu(process)
        begun = time.time()
        with transaction.atomic():  # as one request would that starts them all: the hints go out at its end
            ids = [submit(agent, PROMPT, user=user).id for _ in range(runs)]
        submitted = time.time()
        rows = _wait(child, ids)
        cpu = _cpu(process) - cpu
    last = max(row.finished_at.timestamp() for row in rows)
    first = min(row.started_at.timestamp() for row in rows)
    return Flight(
        runs=runs,
        peak=_peak(rows),
        submit_s=submitted - begun,
        wall_s=last - begun,
        started_s=last - first,
        cpu_s=cpu,
        memory_mb=watch.memory / 1e6,
        idle_mb=idle / 1e6,
        connections=watch.connections,
    )


def _wait(child: Child, ids: list[Any]) -> list[Any]:
    found = Run.objects.filter(id__in=ids)
    ended = found.filter(status__in=[Status.COMPLETED, Status.FAILED, Status.BLOCKED, Status.CANCELLED])
    if not wait_until(lambda: ended.count() == len(ids), TIMEOUT_S, poll=0.1):
        raise ProcessError(f"{ended.count()} of {len(ids)} runs ended within {TIMEOUT_S:.0f} s\n{child.tail()}")
    rows = list(found)
    if bad := [row for row in rows if row.status != Status.COMPLETED]:
        raise ProcessError(f"run {bad[0].id} is {bad[0].status}: {bad[0].error}\n{child.tail()}")
    return rows


def _peak(rows: list[Any]) -> int:
    moments = sorted([(row.started_at, 1) for row in rows] + [(row.finished_at, -1) for row in rows])
    return max(accumulate(change for _, change in moments))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def ready_worker(stack: Stack, agents: list[str], name: str = "worker", **env: str) -> Iterator[Child]:
    """A worker that has driven a run of each agent."""
    with worker(stack, name, **env) as child:
        require(WorkerProcess.objects.filter(name__contains=f":{child.pid}:").exists, child, "sign on")
        for agent in agents:
            _wait(child, [submit(agent, PROMPT).id])
        yield child


def measure(stack: Stack, runs: int, delay_s: float) -> Iterator[Figure]:
    delay = {"BENCH_MODEL_DELAY_S": str(delay_s)}
    with (
        model_server(stack, delay_s, TOKENS) as url,
        ready_worker(stack, ["react/bench-litellm"], BENCH_MODEL_URL=url, **delay) as child,
    ):
        litellm = fly(stack, child, "react/bench-litellm", runs)
    yield from _figures("litellm", litellm)
    with ready_worker(stack, ["react/bench-scripted"], **delay, BENCH_SCRIPTED_ALONE="1") as child:
        scripted = fly(stack, child, "react/bench-scripted", runs)
    yield from _figures("scripted", scripted)
    yield Figure("in_flight_litellm_own_cpu", None, litellm.cpu_s - scripted.cpu_s, "s")


def _figures(model: str, flight: Flight) -> list[Figure]:
    shown = [
        ("runs", flight.runs, "runs"),
        ("peak", flight.peak, "runs"),
        ("submit", flight.submit_s, "s"),
        ("wall", flight.wall_s, "s"),
        ("claim_to_end", flight.started_s, "s"),
        ("worker_cpu", flight.cpu_s, "s"),
        ("db_connections", flight.connections, "connections"),
        ("memory", flight.memory_mb, "MB"),
        ("memory_idle", flight.idle_mb, "MB"),
    ]
    return [Figure(f"in_flight_{model}_{name}", None, float(value), unit) for name, value, unit in shown]
