"""What the model is shown of a long conversation: a view. The full list is kept for history."""

from ravi_django.agents.compaction.pipeline import CompactionPipeline
from ravi_django.agents.compaction.sliding_window import SlidingWindowCompaction
from ravi_django.agents.compaction.strategy import CompactionStrategy
from ravi_django.agents.compaction.summarization import SummarizationCompaction
from ravi_django.agents.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.compaction.tool_calls import SelectiveToolCallCompaction
from ravi_django.agents.compaction.tool_results import ToolResultCompaction
from ravi_django.agents.compaction.truncation import TruncationCompaction

__all__ = [
    "CompactionPipeline",
    "CompactionStrategy",
    "SelectiveToolCallCompaction",
    "SlidingWindowCompaction",
    "SummarizationCompaction",
    "TokenBudgetComposed",
    "ToolResultCompaction",
    "TruncationCompaction",
]
