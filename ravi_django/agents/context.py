"""What an agent remembers and what of it the model is shown."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ravi_django.agents.compaction import (
    CompactionPipeline,
    CompactionStrategy,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.agents.history import HistoryProvider, InMemoryHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage, HistoryRetention, InvalidInputError

if TYPE_CHECKING:
    from ravi_django.agents.agent_context import AgentContext

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

DjangoHistoryProvider: type[HistoryProvider]  # lives above this layer: loaded when it is asked for


class ContextConfig:
    """The memory of an agent; one object serves all its runs.

    history: where turns are kept; None keeps nothing.
    pipeline: what the model is shown of them; a sliding window of 100 messages when None.
    retention: "permanent" keeps turns with the session, "run" drops them when the run ends, "none" stores nothing.
    """

    def __init__(
        self,
        history: HistoryProvider | None = None,
        pipeline: CompactionStrategy | None = None,
        retention: HistoryRetention | str = HistoryRetention.PERMANENT,
    ) -> None:
        if isinstance(history, type) or (history is not None and not callable(getattr(history, "append_many", None))):
            raise TypeError(f"not a history provider: {history!r}; write e.g. ContextConfig(InMemoryHistoryProvider())")
        if isinstance(pipeline, type) or (pipeline is not None and not callable(getattr(pipeline, "compact", None))):
            raise TypeError(f"not a compaction pipeline: {pipeline!r}; write CompactionPipeline(…) of strategies")
        self.history = history
        self.pipeline: CompactionStrategy = (
            CompactionPipeline(SlidingWindowCompaction()) if pipeline is None else pipeline
        )
        self.retention = HistoryRetention(retention)

    @property
    def stores(self) -> HistoryProvider | None:
        """Where new turns go; None when they are not stored."""
        return None if self.retention is HistoryRetention.NONE else self.history

    def bind(
        self, agent_id: AgentId | str, *, instructions: Sequence[ChatMessage] = (), model: Any = None
    ) -> AgentContext:
        """This memory as that of one agent. `instructions` are its system messages, where they are known before it
        runs; by `model` tokens are counted."""
        from ravi_django.agents.agent_context import AgentContext

        return AgentContext(self, agent_id, instructions=instructions, model=model)

    async def get_prompt_window(self, session_id: str, *, agent_id: AgentId | str | None = None) -> list[ChatMessage]:
        """The conversation as the agent's model is shown it. Raises InvalidInputError without an agent: histories are
        kept by agent and session. `agent.context` knows its own."""
        if agent_id is None:
            raise InvalidInputError(
                "whose window? pass agent_id=…, or ask the agent's own context: agent.context.get_prompt_window(…)",
                field="agent_id",
            )
        return await self.bind(agent_id).get_prompt_window(session_id)


def __getattr__(name: str) -> Any:
    if name == "AgentContext":  # is made of the parts here
        from ravi_django.agents.agent_context import AgentContext

        return AgentContext
    if name == "DjangoHistoryProvider":
        return import_module("ravi_django.runtime.lease.history").DjangoHistoryProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
