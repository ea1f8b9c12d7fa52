"""The memory of an agent, and the view of it for the model."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ravi_django.agents.memory.agent_context import AgentContext as AgentContext, ContextConfig as ContextConfig
from ravi_django.agents.memory.compaction.strategy import (
    CompactionPipeline as CompactionPipeline,
    CompactionStrategy as CompactionStrategy,
)
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction as SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed as TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction as SelectiveToolCallCompaction,
    SlidingWindowCompaction as SlidingWindowCompaction,
    ToolResultCompaction as ToolResultCompaction,
    TruncationCompaction as TruncationCompaction,
)
from ravi_django.agents.memory.history import (
    HistoryProvider as HistoryProvider,
    InMemoryHistoryProvider as InMemoryHistoryProvider,
)

DjangoHistoryProvider: type[HistoryProvider]  # of a higher layer: imported on first use

_OURS = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith("ravi_django.")]
__all__ = ["DjangoHistoryProvider", *_OURS]


def __getattr__(name: str) -> Any:
    if name == "DjangoHistoryProvider":
        return import_module("ravi_django.engine.lease.history").DjangoHistoryProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
