"""One conversation of many runs with many calls: whether a late step costs more than an early one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from django.db import connections

from benchmarks.agents import add, hold
from benchmarks.durability import HEARTBEAT_S, LEASE_S, SWEEP_S, TIMEOUT_S, _disk, until
from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from benchmarks.steps import runtime
from project.process import ProcessError, wait_until
from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import ChatMessage, ModelResponse, Role, TextBlock, ToolUseBlock
from ravi_django.models import Run, Status

EARLY, LATE = slice(160, 200), slice(-40, None)
WORDS = "word " * 800  # 1,000 tokens


class Worker:
    """Thinks aloud and adds until it has called as often as its message says, and holds where that says so."""

    name = "bench-worker-model"

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.view: list[ChatMessage] = []

    async def stream(self, messages: Sequence[ChatMessage], options: Any, meta: Any) -> AsyncIterator[Any]:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())
        self.view = list(messages)
        at = next(at for at in range(len(messages) - 1, -1, -1) if messages[at].role is Role.USER)
        task, calls = messages[at].text, _answered(meta.run_id)
        text = TextBlock(text=WORDS)
        if task == "hold" or calls < int(task):
            call = ToolUseBlock(
                tool_name="hold" if task == "hold" else "add",
                arguments={} if task == "hold" else {"a": 1, "b": calls},
                call_id=f"call_{meta.run_id}_{calls}",
            )
            yield ModelResponse.of([text, call])
        else:
            yield ModelResponse.of([text])


_answers: dict[str, int] = {}


def _answered(run_id: str) -> int:
    """How often this process has answered the run before."""
    _answers[run_id] = _answers.get(run_id, -1) + 1
    return _answers[run_id]


model = Worker()
agent = ReActAgent(
    "bench-long",
    model=model,
    tools=[add, hold],
    context=ContextConfig(DjangoHistoryProvider()),
    system_instructions="You add numbers.",
    max_iterations=1_000,
)
register(agent)


def measure(stack: Stack, runs: int, calls: int) -> Iterator[Figure]:
    before = _disk(stack.database_url)
    session = asyncio.run(_talk(runs, calls))
    wall, cpu = _between(model.wall), _between(model.cpu)
    steps = len(wall)
    early, late = (EARLY, LATE) if steps > 240 else (slice(0, steps // 2), slice(steps // 2, None))
    for name, taken in (("", wall), ("_cpu", cpu)):
        yield Figure(f"long_conversation{name}_early", calls, _mean(taken[early]), "ms")
        yield Figure(f"long_conversation{name}_late", calls, _mean(taken[late]), "ms")
        yield Figure(f"long_conversation{name}_growth", calls, _mean(taken[late]) / _mean(taken[early]), "x")
    yield Figure("long_conversation_bytes", calls, (_disk(stack.database_url) - before) / steps, "B")
    yield from asyncio.run(_litellm())
    if runs * calls >= 240:  # two workers take longer to start than a quick run may
        yield Figure("long_conversation_continues", calls, _killed(stack, session), "s")
    connections.close_all()


def _between(times: Sequence[float]) -> list[float]:
    return [(later - before) * 1000 for before, later in pairwise(times)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


async def _talk(runs: int, calls: int) -> Any:
    session: Any = None
    async with runtime() as rt:
        for _ in range(runs):
            run_id = await rt.submit(agent, str(calls - 1), session=session)
            await rt.result(run_id, timeout=TIMEOUT_S)
            session = session or (await Run.objects.aget(id=run_id)).session_id
    return session


async def _litellm() -> list[Figure]:
    """What litellm adds to a step: the last view as a request to Claude, without a network."""
    from tests.support.histories import Wire

    wire, walls, cpus = Wire(), [], []
    with wire.connected():
        for _ in range(12):
            begun, cpu = time.perf_counter(), time.process_time()
            await wire.ask("claude", model.view)
            walls.append((time.perf_counter() - begun) * 1000)
            cpus.append((time.process_time() - cpu) * 1000)
    return [
        Figure("long_conversation_litellm", None, median(walls[2:]), "ms"),
        Figure("long_conversation_litellm_cpu", None, median(cpus[2:]), "ms"),
    ]


def _killed(stack: Stack, session: Any) -> float:
    """From the SIGKILL of a worker in the middle of a call of the conversation to the run's next lease."""
    lease = {"BENCH_LEASE_S": str(LEASE_S), "BENCH_HEARTBEAT_S": str(HEARTBEAT_S), "BENCH_SWEEP_S": str(SWEEP_S)}
    lease["BENCH_SCRIPTED_ALONE"] = "1"
    with ready_worker(stack, [], **lease) as doomed:
        run_id = submit(agent, "hold", session=session).id
        until(doomed, run_id, Status.RUNNING)
        with ready_worker(stack, [], "other", **lease) as other:
            begun = time.perf_counter()
            doomed.kill()
            if not wait_until(Run.objects.filter(id=run_id, lease_epoch__gte=2).exists, TIMEOUT_S, poll=0.01):
                raise ProcessError(f"no worker took run {run_id} over\n{other.tail()}")
            return time.perf_counter() - begun
