"""The everyday constructor. Decoupled from the runtime: the caller registers what it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.agents.compaction import CompactionPipeline, CompactionStrategy, SlidingWindowCompaction
from ravi_django.agents.context import ContextConfig
from ravi_django.agents.history import HistoryProvider
from ravi_django.agents.react import ReActAgent
from ravi_django.agents.toolbox import Toolbox
from ravi_django.kernel import ChatModel, ToolRegistry


def create_assistant_agent(
    model_client: ChatModel,
    *,
    key: str = "assistant",
    tools: ToolRegistry | Iterable[Any] | None = None,
    system_instructions: str = "",
    memory: HistoryProvider | None = None,
    compaction: CompactionStrategy | None = None,
    **options: Any,
) -> ReActAgent:
    """A ready, unregistered ReActAgent `react/<key>`.

    memory: where conversations are kept; None keeps nothing. compaction: one strategy or a pipeline, a sliding window
    of 100 messages when None. Further keywords go to ReActAgent.
    """
    pipeline = compaction or CompactionPipeline(SlidingWindowCompaction())
    return ReActAgent(
        key,
        model=model_client,
        tools=Toolbox.of(tools),
        context=ContextConfig(memory, pipeline),
        system_instructions=system_instructions,
        **options,
    )
