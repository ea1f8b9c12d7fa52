"""Many delegations from one turn, all at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median, quantiles
from uuid import UUID

from django.db import connections

from benchmarks.counting import cost
from benchmarks.delegation import ASKER
from benchmarks.durability import until
from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from project.process import Child
from ravi_django import submit
from ravi_django.models import Run, Status

ORCHESTRATOR = "orchestrator/bench-orchestrator"


def measure(stack: Stack, children: int, samples: int) -> Iterator[Figure]:
    """`samples` runs in a worker, each asking `children` others in one turn, by code and by an orchestrator's model;
    and what one child is in commits."""
    with ready_worker(stack, ["react/bench-instant"]) as child:
        for name, agent in (("", ASKER), ("_orchestrator", ORCHESTRATOR)):
            taken = [_once(child, agent, children) for _ in range(samples + 1)][1:]
            yield from _figures(f"fan_out_{children}{name}", taken)
    connections.close_all()
    one, many = (cost(stack.database_url, ASKER, str(count)).commits for count in (1, children))
    yield Figure("commits_per_child", None, (many - one) / max(1, children - 1), "commits")


def _once(child: Child, agent: str, children: int) -> tuple[float, list[float]]:
    """Milliseconds from the first ask to the asker's next line, and from there to each child's first line."""
    run_id: UUID = submit(agent, str(children)).id
    until(child, run_id, Status.COMPLETED)
    went_on, said = json.loads(Run.objects.values_list("output", flat=True).get(id=run_id) or "")
    assert len(said) == children, len(said)
    first = min(asked for asked, _, _ in said)
    return (went_on - first) * 1000, [(begun - first) * 1000 for _, begun, _ in said]


def _figures(name: str, taken: list[tuple[float, list[float]]]) -> list[Figure]:
    waits = [wait for _, each in taken for wait in each]
    return [
        Figure(f"{name}_wall", None, median(wall for wall, _ in taken), "ms"),
        Figure(f"{name}_to_child_p50", None, median(waits), "ms"),
        Figure(f"{name}_to_child_p95", None, quantiles(waits, n=20, method="inclusive")[-1], "ms"),
    ]
