"""The prompt window: what a view costs beside its model call, and what a long conversation costs to begin with."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from benchmarks.report import Figure
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.agents.current import _task_ctx
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline, CompactionStrategy
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.engine.lease.history import _append
from ravi_django.kernel import AgentId, ChatMessage, ModelResponse, Role, TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.models import Session
from ravi_django.runs import sessions

AGENT = AgentId("react", "bench-window")
STRATEGIES: dict[str, Callable[[], CompactionStrategy]] = {
    "window": lambda: SlidingWindowCompaction(20),
    "tool_results": lambda: ToolResultCompaction(200),
    "tool_calls": lambda: SelectiveToolCallCompaction(5),
    "summary": lambda: SummarizationCompaction(20, keep_last=8),
    "truncation": lambda: TruncationCompaction(2_000),
    "budget": lambda: TokenBudgetComposed(ToolResultCompaction(200), SlidingWindowCompaction(20), max_tokens=2_000),
}


class _Summing:
    """A run whose model summarizes at once."""

    model = None

    async def llm(self, messages: Any, **options: Any) -> ModelResponse:
        return ModelResponse.of([TextBlock(text="what has happened so far " * 10)])

    @contextmanager
    def scope(self, name: str) -> Any:
        yield


def _turns(count: int) -> list[tuple[ChatMessage, ChatMessage]]:
    return [
        (
            ChatMessage(
                role=Role.ASSISTANT, content=[ToolUseBlock(tool_name="t", arguments={"n": n}, call_id=f"c{n}")]
            ),
            ChatMessage(
                role=Role.TOOL, content=[ToolResultBlock(call_id=f"c{n}", content=[TextBlock(text="x" * 400)])]
            ),
        )
        for n in range(count)
    ]


async def _views(make: Callable[[], CompactionStrategy], turns: int) -> float:
    """Microseconds a turn: the view before every model call of one run of that many."""
    _task_ctx.set(_Summing())
    context = ContextConfig(None, CompactionPipeline(make())).bind(AGENT)
    thread = await context.open("session")
    await context.add(thread, ChatMessage.of(Role.USER, "the task"))
    made = _turns(turns)
    gc.collect()
    begun = time.perf_counter()
    for call, result in made:
        await context.view(thread)
        await context.add(thread, call)
        await context.add(thread, result)
    return (time.perf_counter() - begun) * 1e6 / turns


def _long(turns: int) -> list[Figure]:
    session = sessions.create_session(Session(agent=str(AGENT)))
    said = [ChatMessage.of("assistant" if n % 2 else "user", f"turn {n} " * 20) for n in range(turns)]
    for begin in range(0, turns, 1_000):
        _append(AGENT, session.id, said[begin : begin + 1_000], "", None)
    context = ContextConfig(DjangoHistoryProvider()).bind(AGENT)
    window = async_to_sync(context.get_prompt_window)
    window(str(session.id))
    taken = []
    for _ in range(20):
        begun = time.perf_counter()
        window(str(session.id))
        taken.append((time.perf_counter() - begun) * 1000)
    with CaptureQueriesContext(connection) as queries:
        window(str(session.id))
    gc.collect()
    tracemalloc.start()
    try:
        window(str(session.id))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return [
        Figure("long_window", turns, median(taken), "ms"),
        Figure("long_window_queries", turns, len(queries), "queries"),
        Figure("long_window_memory", turns, peak / 1000, "kB"),
    ]


def measure(repetitions: Mapping[int, int], lengths: tuple[int, ...]) -> Iterator[Figure]:
    yield from (
        Figure(f"view_{name}", turns, median(asyncio.run(_views(make, turns)) for _ in range(times)), "us")
        for name, make in STRATEGIES.items()
        for turns, times in repetitions.items()
    )
    connections.close_all()
    for turns in lengths:
        yield from _long(turns)
