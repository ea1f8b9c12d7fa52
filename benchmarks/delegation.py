"""What it costs to ask another agent: from the spawn to the child's first line, from its reply to the parent's next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from statistics import median, quantiles
from uuid import UUID

from django.db import connections

from benchmarks.durability import until
from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from benchmarks.steps import TIMEOUT_S, runtime
from project.process import Child
from ravi_django import submit
from ravi_django.models import Run, Status

ASKER = "test/bench-asker"
WARM_UP = 3

Legs = list[tuple[float, float, float]]  # milliseconds: to the child's first line, from its reply on, and all of it


def measure(stack: Stack, samples: int) -> Iterator[Figure]:
    with ready_worker(stack, ["react/bench-instant"]) as child:
        over_broker = [_in_worker(child) for _ in range(samples + WARM_UP)][WARM_UP:]
    connections.close_all()
    yield from _figures("", over_broker)
    yield from _figures("_in_process", asyncio.run(_in_process(samples)))


def _in_worker(child: Child) -> tuple[float, float, float]:
    run_id: UUID = submit(ASKER, "1").id
    until(child, run_id, Status.COMPLETED)
    return _legs(Run.objects.values_list("output", flat=True).get(id=run_id) or "")


async def _in_process(samples: int) -> Legs:
    async with runtime() as rt:
        outputs = [await rt.result(await rt.submit(ASKER, "1"), timeout=TIMEOUT_S) for _ in range(samples + WARM_UP)]
    return [_legs(output) for output in outputs[WARM_UP:]]


def _legs(output: str) -> tuple[float, float, float]:
    went_on, [[asked, begun, replied]] = json.loads(output)
    return (begun - asked) * 1000, (went_on - replied) * 1000, (went_on - asked) * 1000


def _figures(where: str, taken: Legs) -> list[Figure]:
    found = []
    for leg, values in zip(("to_child", "to_parent", "whole"), zip(*taken, strict=True), strict=True):
        p95 = quantiles(values, n=20, method="inclusive")[-1]
        name = f"delegation{where}_{leg}"
        found += [Figure(f"{name}_p50", None, median(values), "ms"), Figure(f"{name}_p95", None, p95, "ms")]
    return found
