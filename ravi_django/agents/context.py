"""What an agent remembers, and what the model gets of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ravi_django.agents.memory.agent_context import AgentContext, ContextConfig
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline, CompactionStrategy
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.tool_results import SelectiveToolCallCompaction, ToolResultCompaction
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction, TruncationCompaction
from ravi_django.agents.memory.history import HistoryProvider, InMemoryHistoryProvider

__all__ = [
    "AgentContext",
    "CompactionPipeline",
    "CompactionStrategy",
    "ContextConfig",
    "DjangoHistoryProvider",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "SelectiveToolCallCompaction",
    "SlidingWindowCompaction",
    "SummarizationCompaction",
    "TokenBudgetComposed",
    "ToolResultCompaction",
    "TruncationCompaction",
]

DjangoHistoryProvider: type[HistoryProvider]  # of a higher layer: imported on first use


def __getattr__(name: str) -> Any:
    if name == "DjangoHistoryProvider":
        return import_module("ravi_django.runtime.lease.history").DjangoHistoryProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
