"""What holds for every strategy, whatever the conversation."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_django.agents.compaction import (
    CompactionPipeline,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.agents.summary import keeps_of, normalized
from ravi_django.agents.transcript import Transcript
from ravi_django.kernel import ChatMessage, Role
from tests.support.conversations import conversations, unpaired
from tests.support.world import task_ctx
from tests.unit.agents.compaction.test_summarization import Run

small = st.integers(4, 12)
tokens = st.integers(1, 120)

strategies = st.one_of(
    st.builds(ToolResultCompaction, st.integers(1, 3), keep_newest=st.integers(0, 2)),
    st.builds(SelectiveToolCallCompaction, st.integers(0, 4)),
    st.builds(SlidingWindowCompaction, small),
    st.builds(SummarizationCompaction, small, keep_last=st.integers(1, 3)),
    st.builds(lambda most: SummarizationCompaction(max_tokens=most), tokens),
    st.builds(TruncationCompaction, tokens),
    st.builds(lambda n, most: TokenBudgetComposed(SelectiveToolCallCompaction(n), max_tokens=most), small, tokens),
    st.builds(
        lambda most: CompactionPipeline(
            ToolResultCompaction(2), SelectiveToolCallCompaction(2), SummarizationCompaction(most, keep_last=2)
        ),
        small,
    ),
)


def view_of(strategy: Any, messages: Sequence[ChatMessage], run: Run | None = None) -> list[ChatMessage]:
    async def inside() -> list[ChatMessage]:
        task_ctx.set(run or Run())
        return await strategy.compact(messages)  # type: ignore[no-any-return]

    return asyncio.run(inside())


def spoken(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [message for message in messages if message.role is not Role.SYSTEM]


@given(strategies, conversations())
def test_no_result_without_its_call_and_no_call_without_its_result(strategy: Any, messages: list[ChatMessage]) -> None:
    assert unpaired(view_of(strategy, messages), messages) == set()


@given(strategies, conversations())
def test_results_come_right_behind_their_call(strategy: Any, messages: list[ChatMessage]) -> None:
    open_calls: set[str] = set()
    for message in view_of(strategy, messages):
        if message.role is Role.TOOL:
            found = {block.call_id for block in message.content}  # type: ignore[union-attr]
            assert found <= open_calls
            open_calls -= found
        else:
            open_calls = {call.call_id for call in message.tool_calls}


@given(strategies, conversations())
def test_system_messages_stay_and_come_first(strategy: Any, messages: list[ChatMessage]) -> None:
    view = view_of(strategy, messages)

    leading = [message for message in messages if message.role is Role.SYSTEM]
    assert [message for message in view if message.role is Role.SYSTEM and keeps_of(message) is None] == leading
    assert len([message for message in view if keeps_of(message) is not None]) <= 1
    assert all(message.role is not Role.SYSTEM for message in view[len(view) - len(spoken(view)) :])


@given(strategies, conversations())
def test_the_users_last_words_stay(strategy: Any, messages: list[ChatMessage]) -> None:
    said = [message for message in messages if message.role is Role.USER]

    view = view_of(strategy, messages)

    assert not said or any(message is said[-1] for message in view)


@given(strategies, conversations())
def test_the_given_messages_are_not_changed(strategy: Any, messages: list[ChatMessage]) -> None:
    before, said = list(map(id, messages)), [message.model_dump() for message in messages]

    view = view_of(strategy, messages)

    assert list(map(id, messages)) == before
    assert [message.model_dump() for message in messages] == said
    assert view is not messages


@given(strategies, conversations())
def test_the_view_of_a_view_is_itself(strategy: Any, messages: list[ChatMessage]) -> None:
    view = view_of(strategy, messages)

    if not any(isinstance(part, SummarizationCompaction) for part in (strategy, *getattr(strategy, "strategies", ()))):
        assert view_of(strategy, view) == view


@given(strategies, conversations())
def test_a_transcript_gives_the_same_view_as_a_list(strategy: Any, messages: list[ChatMessage]) -> None:
    assert view_of(strategy, Transcript(messages)) == view_of(strategy, messages)


@given(conversations(), st.integers(1, 3), small)
def test_with_a_summary_the_next_view_is_this_one_and_what_came_after(
    messages: list[ChatMessage], keep_last: int, most: int
) -> None:
    """What is appended behind the transcript stands for the same messages in the next view."""
    view = view_of(SummarizationCompaction(most, keep_last=keep_last), messages)
    summary = next((message for message in view if keeps_of(message) is not None), None)
    answer = ChatMessage.of(Role.ASSISTANT, "and so on")

    if summary is not None:
        transcript = Transcript([*messages, summary])
        assert normalized(transcript) == view
        transcript.append(answer)
        assert normalized(transcript) == [*view, answer]
        assert normalized(list(transcript)) == [*view, answer]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SlidingWindowCompaction(20),
        lambda: CompactionPipeline(SlidingWindowCompaction(20), ToolResultCompaction(2)),
        lambda: TokenBudgetComposed(SlidingWindowCompaction(20), max_tokens=200),
        lambda: TruncationCompaction(200),
    ],
)
def test_one_more_turn_of_a_long_run_costs_what_the_window_costs(make: Any) -> None:
    class Counting(Transcript):
        looked = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            self.looked += len(found) if isinstance(index, slice) else 1
            return found

    def looked(turns: int) -> int:
        strategy, transcript = make(), Counting([ChatMessage.of("system", "s"), ChatMessage.of("user", "task")])
        for number in range(turns):
            transcript.append(ChatMessage.of(Role.ASSISTANT, f"step {number:05}"))
        view_of(strategy, transcript)
        transcript.append(ChatMessage.of(Role.ASSISTANT, "one more"))
        before = transcript.looked
        view_of(strategy, transcript)
        return transcript.looked - before

    assert looked(5_000) == looked(100) <= 150
