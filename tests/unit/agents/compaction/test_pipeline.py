import asyncio
from typing import Any

import pytest

from ravi_django.agents.compaction import (
    CompactionPipeline,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
)
from ravi_django.agents.summary import make_summary
from ravi_django.kernel import ChatMessage
from tests.support.conversations import assistant, user


class Upper:
    async def compact(self, messages: Any) -> list[ChatMessage]:
        return [ChatMessage.of(message.role, message.text.upper()) for message in messages]


def test_pipeline_runs_its_strategies_in_order() -> None:
    pipeline = CompactionPipeline(SlidingWindowCompaction(2), Upper())

    view = asyncio.run(pipeline.compact([user("a"), assistant("b"), user("c")]))

    assert [message.text for message in view] == ["C"]


def test_empty_pipeline_gives_a_copy() -> None:
    messages = [user()]

    view = asyncio.run(CompactionPipeline().compact(messages))

    assert view == messages
    assert view is not messages


def test_reach_is_the_first_strategys() -> None:
    assert CompactionPipeline(SlidingWindowCompaction(70), Upper()).reach == 70
    assert CompactionPipeline(Upper(), SlidingWindowCompaction(70)).reach is None
    assert CompactionPipeline().reach is None


def test_a_window_behind_strategies_that_look_at_the_end_alone_bounds_what_is_read() -> None:
    trimming, selecting, window = ToolResultCompaction(), SelectiveToolCallCompaction(), SlidingWindowCompaction(100)

    assert CompactionPipeline(trimming, window).reach == 100
    assert CompactionPipeline(trimming, selecting, window).reach == 1_000  # what is left out makes room for older turns
    assert CompactionPipeline(trimming, selecting).reach is None
    assert CompactionPipeline(SummarizationCompaction(500), window).reach == 2_000
    assert CompactionPipeline(TokenBudgetComposed(trimming)).reach == 1_000


def test_a_summary_amid_the_messages_is_brought_to_the_front() -> None:
    kept, after = [user("3"), assistant("4")], [user("5")]
    summary = make_summary("1 and 2", 2)

    view = asyncio.run(CompactionPipeline().compact([user("1"), assistant("2"), *kept, summary, *after]))

    assert view == [summary, *kept, *after]


def test_pipeline_refuses_what_is_no_strategy() -> None:
    with pytest.raises(TypeError, match="not a compaction strategy"):
        CompactionPipeline(SlidingWindowCompaction)  # type: ignore[arg-type]  # the class, not an instance
