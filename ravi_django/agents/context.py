"""What an agent remembers and what of it the model is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ravi_django.agents.compaction import CompactionPipeline, CompactionStrategy, SlidingWindowCompaction
from ravi_django.agents.history import HistoryProvider, InMemoryHistoryProvider
from ravi_django.kernel import HistoryRetention

if TYPE_CHECKING:
    from ravi_django.runtime.history import DjangoHistoryProvider

__all__ = [
    "CompactionPipeline",
    "ContextConfig",
    "DjangoHistoryProvider",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "SlidingWindowCompaction",
]


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


def __getattr__(name: str) -> Any:
    if name == "DjangoHistoryProvider":  # lives above this layer: loaded when it is asked for
        from ravi_django.runtime.history import DjangoHistoryProvider

        return DjangoHistoryProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
