"""A tree of runs, five deep: each makes a model call and a tool call and asks its children all at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from django.db import connections
from django.db.models import Q, Sum

from benchmarks.counting import cost
from benchmarks.durability import until
from benchmarks.in_flight import Watch, ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from benchmarks.team_agents import depth
from project.process import Child, ProcessError
from ravi_django import submit
from ravi_django.models import JournalEntry, Run, Status

NODE = "test/bench-node"


def measure(stack: Stack, runs: int, samples: int) -> Iterator[Figure]:
    """`samples` trees in a worker, without a budget and with one; and one in this process, for what it costs."""
    with ready_worker(stack, ["react/bench-instant"]) as child:
        _grow(child, runs)
        assert child.pid
        with Watch(stack.database_url, child.pid) as watch:
            plain = [_grow(child, runs) for _ in range(samples)]
            budgeted = [_grow(child, runs, budget={"max_tokens": 10_000 * runs}) for _ in range(samples)]
    connections.close_all()
    whole = cost(stack.database_url, NODE, str(runs))
    if whole.output != str(runs):
        raise ProcessError(f"the tree has {whole.output} runs, not {runs}")
    rows = _rows(runs)
    connections.close_all()
    name = f"tree_{runs}"
    yield from [
        Figure(f"{name}_depth", None, depth(runs), "levels"),
        Figure(f"{name}_wall", None, median(plain), "s"),
        Figure(f"{name}_budgeted_wall", None, median(budgeted), "s"),
        Figure(f"{name}_a_run", None, median(plain) * 1000 / runs, "ms"),
        Figure(f"{name}_memory", None, watch.memory / 1e6, "MB"),
        Figure(f"{name}_db_connections", None, watch.connections, "connections"),
        Figure(f"{name}_commits_per_run", None, whole.commits / runs, "commits"),
        Figure(f"{name}_rows_per_run", None, rows / runs, "rows"),
        Figure(f"{name}_stored_per_run", None, whole.disk / runs / 1000, "kB"),
    ]


def _grow(child: Child, runs: int, **options: object) -> float:
    begun = time.perf_counter()
    run_id = submit(NODE, str(runs), **options).id  # type: ignore[arg-type]
    until(child, run_id, Status.COMPLETED)
    taken = time.perf_counter() - begun
    tree = Run.objects.filter(root_id=run_id)
    if tree.exclude(status=Status.COMPLETED).exists() or tree.count() != runs - 1:
        raise ProcessError(f"the tree of run {run_id} is not what it should be\n{child.tail()}")
    return taken


def _rows(runs: int) -> int:
    """Journal rows of the newest tree."""
    root = Run.objects.filter(agent=NODE, parent=None).latest("created_at")
    tree = Run.objects.filter(Q(id=root.id) | Q(root_id=root.id))
    counted = JournalEntry.objects.filter(run_id__in=tree.values("id")).count()
    assert tree.aggregate(used=Sum("input_tokens"))["used"] == 100 * runs
    return counted
