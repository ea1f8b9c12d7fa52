"""Many short runs in one worker, with a prune half-way: what a run costs, and how large the tables are, as they grow.

    python -m benchmarks.volume [--runs 200000]

docs/explanation/scale.md has the figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import psutil
import psycopg

from benchmarks import stack as stacks
from benchmarks.stack import Stack
from project.process import Child, ProcessError, wait_until

BATCH = 500  # runs submitted in one transaction; two batches are open at once
PARTS = 10  # of the runs, each with a line
TIMEOUT_S = 300.0
LINE = "{:>9}  {:>7}  {:>13}  {:>15}  {:>9}  {:>10}"
HEAD = LINE.format("runs", "runs/s", "worker ms/run", "database ms/run", "tables MB", "indexes MB")
SIZES = """
SELECT sum(pg_table_size(oid)) / 1e6, sum(pg_indexes_size(oid)) / 1e6 FROM pg_class
WHERE relkind = 'r' AND relname ~ '^ravi_'
"""
LARGEST = """
SELECT relname, pg_table_size(oid) / 1e6, pg_indexes_size(oid) / 1e6 FROM pg_class
WHERE relkind = 'r' AND relname ~ '^ravi_' ORDER BY pg_total_relation_size(oid) DESC LIMIT 8
"""


def _fill(child: Child, runs: int) -> None:
    """Submit so many runs while the worker drives those before."""
    from django.db import transaction

    from ravi_django import submit
    from ravi_django.models import Run

    active = Run.objects.filter(status__in=["pending", "running"])
    for _ in range(runs // BATCH):
        with transaction.atomic():
            for _ in range(BATCH):
                submit("react/bench-instant", "Answer in a few words.")
        if not wait_until(lambda: active.count() <= BATCH, TIMEOUT_S, poll=0.05):
            raise ProcessError(f"{active.count()} runs still wait after {TIMEOUT_S:.0f} s\n{child.tail()}")


def _seconds(process: psutil.Process) -> float:
    """CPU of a process and of its children, ended ones too."""
    times = process.cpu_times()
    living = (one.cpu_times() for one in process.children())
    ended = times.children_user + times.children_system
    return float(times.user + times.system + ended + sum(one.user + one.system for one in living))


def _measure(stack: Stack, child: Child, runs: int) -> None:
    pruning: subprocess.Popen[bytes] | None = None
    worker = psutil.Process(child.pid)
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
        assert server
        size = runs // PARTS
        print(HEAD, flush=True)
        for part in range(1, PARTS + 1):
            begun, used = time.monotonic(), (_seconds(worker), _seconds(server))
            _fill(child, size)
            took, after = time.monotonic() - begun, (_seconds(worker), _seconds(server))
            cpu = [f"{(now - before) * 1000 / size:.2f}" for now, before in zip(after, used, strict=True)]
            sizes = connection.execute(SIZES).fetchone() or ()
            print(LINE.format(part * size, f"{size / took:.0f}", *cpu, *(f"{one:.0f}" for one in sizes)), flush=True)
            if part == PARTS // 2:
                command = [sys.executable, "manage.py", "ravi_prune", "--older-than", "1s"]
                pruning = subprocess.Popen(command, cwd=stacks.ROOT)
        if pruning is None or pruning.wait(TIMEOUT_S):
            raise ProcessError("ravi_prune failed")
        for name, tables, indexes in connection.execute(LARGEST):
            print(f"{name:<24}  {tables:>6.0f} MB  {indexes:>6.0f} MB of indexes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volume", description="Many short runs, and a prune.")
    parser.add_argument("--runs", type=int, default=200_000, help=f"a multiple of {BATCH * PARTS}")
    options = parser.parse_args()
    with stacks.servers() as stack:
        stacks.set_up_site()
        with stacks.worker(stack) as child:
            _measure(stack, child, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
