"""Waiting, waking and taking over: what a suspended run weighs, how fast it goes on, how fast a dead worker's does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection, connections, transaction

from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from project.process import Child, ProcessError, wait_until
from ravi_django import signal, submit
from ravi_django.engine.worker import sweep
from ravi_django.engine.worker.engine import Engine
from ravi_django.models import Run, Status

WAITER = "test/bench-waiter"
HOLDER = "test/bench-holder"
LEASE_S, HEARTBEAT_S, SWEEP_S = 3.0, 1.0, 1.0  # of the recovery benchmark
TIMEOUT_S = 60.0


# ----------------------------------------------------------------------------------------------------- wake-up


def wake_up(stack: Stack, samples: int, rows: int) -> Iterator[Figure]:
    """From `signal()` to the next line of the agent's code, through the broker, in a warm Celery worker: behind no rows
    of its journal, and behind so many."""
    with ready_worker(stack, ["react/bench-instant"]) as child:
        for steps in (0, rows):
            taken = [wake_once(child, steps) for _ in range(samples + 3)][3:]
            p95 = quantiles(taken, n=20, method="inclusive")[-1]
            name = f"wake_up_behind_{steps}_rows"
            yield Figure(f"{name}_p50", None, median(taken), "ms")
            yield Figure(f"{name}_p95", None, p95, "ms")


def wake_once(child: Child, steps: int) -> float:
    run_id = submit(WAITER, str(steps)).id
    until(child, run_id, Status.SUSPENDED)
    begun = time.time()
    signal(run_id, "go")
    until(child, run_id, Status.COMPLETED)
    went_on = float(Run.objects.values_list("output", flat=True).get(id=run_id) or 0)
    return (went_on - begun) * 1000


def until(child: Child, run_id: UUID, status: Status) -> None:
    row = Run.objects.filter(id=run_id, status=status)
    if not wait_until(row.exists, TIMEOUT_S, poll=0.005):
        raise ProcessError(f"run {run_id} is not {status} after {TIMEOUT_S:.0f} s\n{child.tail()}")


# ------------------------------------------------------------------------------------------------------ replay


def replay(samples: int, entries: int) -> list[Figure]:
    """One lease of a run with so many recorded calls that still waits: claim, load, replay, suspend again."""
    run_id = submit(WAITER, str(entries)).id
    taken = asyncio.run(_replays(run_id, samples))
    return [Figure(f"replay_{entries}_entries", None, median(taken), "ms")]


async def _replays(run_id: UUID, samples: int) -> list[float]:
    engine = Engine()
    found = []
    try:
        await engine.drive(run_id)
        for _ in range(samples):
            await engine.database.call(signal, run_id, "other")
            begun = time.perf_counter()
            await engine.drive(run_id)
            found.append((time.perf_counter() - begun) * 1000)
    finally:
        await engine.close()
    return found


# -------------------------------------------------------------------------------------- many suspended runs


def suspended(url: str, many: int, samples: int) -> list[Figure]:
    """What a run weighs that waits for a signal, and a sweep's time with so many of them."""
    run_id = submit(WAITER, "0").id
    asyncio.run(_drive(run_id))
    few = _sweeps(samples)
    before = _disk(url)
    _copy(run_id, many)
    _analyze()
    size = (_disk(url) - before) / many
    sweeps = _sweeps(samples)
    return [
        Figure("suspended_run", None, size, "B"),
        Figure("sweep_beside_none", None, median(few), "ms"),
        Figure(f"sweep_beside_{many}_suspended", None, median(sweeps), "ms"),
    ]


async def _drive(run_id: UUID) -> None:
    engine = Engine()
    try:
        await engine.drive(run_id)
    finally:
        await engine.close()


def _sweeps(samples: int) -> list[float]:
    found = []
    for _ in range(samples):
        begun = time.perf_counter()
        sweep.sweep(lambda run_ids: None)
        found.append((time.perf_counter() - begun) * 1000)
    return found


def _copy(run_id: UUID, many: int) -> None:
    """So many runs like this one, each with its session, message, journal, turns of its own."""
    tables = (("ravi_run", "id"), ("ravi_inboxmessage", "run_id"), ("ravi_journalentry", "run_id"))
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE copies AS SELECT gen_random_uuid() AS run, gen_random_uuid() AS session "
            "FROM generate_series(1, %s)",
            [many],
        )
        _insert(cursor, "ravi_session", "id = (SELECT session_id FROM ravi_run WHERE id = %s)", "c.session", "", run_id)
        for table, key in tables:
            _insert(cursor, table, f"{key} = %s", "", key, run_id)
        cursor.execute("DROP TABLE copies")


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _insert(cursor: Any, table: str, where: str, new_id: str, run_key: str, run_id: UUID) -> None:
    cursor.execute("SELECT column_name, is_identity FROM information_schema.columns WHERE table_name = %s", [table])
    replaced = {"id": new_id or ("c.run" if run_key == "id" else "gen_random_uuid()"), "session_id": "c.session"}
    replaced |= {run_key: "c.run"} if run_key else {}
    columns = [(name, identity) for name, identity in cursor.fetchall() if identity == "NO"]
    names = ", ".join(name for name, _ in columns)
    values = ", ".join(replaced.get(name, f"t.{name}") for name, _ in columns)
    cursor.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} t, copies c WHERE t.{where}", [run_id])


def _disk(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as beside:
        tables = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE relname ~ '^ravi_'"
        row = beside.execute(tables).fetchone()
        return int(row[0]) if row else 0


# ------------------------------------------------------------------------------------------------------- claims


def claims(stack: Stack, runs: int, workers: tuple[int, ...]) -> Iterator[Figure]:
    """Claims a second of so many processes that look for claimable runs at once."""
    for count in workers:
        stack.empty()  # the claimers end with their leases: workers would take all those runs over, one at a time
        backlog(runs)
        _analyze()
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.claimer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(count)
        ]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # it is warm
        begun = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        claimed = [int(child.communicate(timeout=TIMEOUT_S)[0]) for child in children]
        taken = time.perf_counter() - begun
        if sum(claimed) != runs:
            raise ProcessError(f"{sum(claimed)} claims of {runs} runs")
        yield Figure(f"claims_of_{count}_workers", None, runs / taken, "claims/s")


def backlog(runs: int) -> None:
    """Add pending runs until there are so many. A worker that drives one suspends it at once."""
    with transaction.atomic():
        missing = runs - Run.objects.filter(agent=WAITER, status=Status.PENDING).count()
        if missing > 0:
            _copy(submit(WAITER, "0").id, missing - 1)


# ----------------------------------------------------------------------------------------------------- recovery


def recovery(stack: Stack, samples: int, pending: int = 0) -> Iterator[Figure]:
    """From the SIGKILL of a worker in the middle of a call to the run's next lease, by another worker, beside so many
    pending runs."""
    lease = {"BENCH_LEASE_S": str(LEASE_S), "BENCH_HEARTBEAT_S": str(HEARTBEAT_S), "BENCH_SWEEP_S": str(SWEEP_S)}
    lease["BENCH_SCRIPTED_ALONE"] = "1"  # else the other worker imports the model library before it looks for work
    taken = []
    for _ in range(samples):
        stack.empty()
        with ready_worker(stack, ["react/bench-instant"], **lease) as doomed:
            run_id = submit(HOLDER, "hold").id
            until(doomed, run_id, Status.RUNNING)
            with ready_worker(stack, ["react/bench-instant"], "other", **lease) as other:
                backlog(pending)
                begun = time.perf_counter()
                doomed.kill()
                if not wait_until(Run.objects.filter(id=run_id, lease_epoch__gte=2).exists, TIMEOUT_S, poll=0.01):
                    raise ProcessError(f"nobody took run {run_id} over\n{other.tail()}")
                taken.append(time.perf_counter() - begun)
    name = f"recovery_beside_{pending}_pending" if pending else "recovery"
    yield Figure(f"{name}_max", None, max(taken), "s")
    yield Figure(f"{name}_median", None, median(taken), "s")


def measure(stack: Stack, *, samples: int, rows: tuple[int, int], many: int, pending: int) -> Iterator[Figure]:
    yield from wake_up(stack, samples, rows[0])
    yield from replay(max(3, samples // 6), rows[1])
    yield from suspended(stack.database_url, many, 5)
    if repeated := samples // 20:  # a quick run sees the other recovery alone
        yield from recovery(stack, repeated)
    yield Figure("recovery_bound", None, LEASE_S + SWEEP_S, "s")
    yield from recovery(stack, max(1, samples // 20), 10 * pending)
    connections.close_all()
