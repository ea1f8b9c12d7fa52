"""What every strategy leaves of a conversation, and what each leaves out."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ravi_django.agents.memory.compaction.strategy import CompactionPipeline
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.tokens import TokenCounter
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.agents.memory.history import window_of
from ravi_django.agents.memory.transcript import CORRECTION, Transcript, keeps_of, make_summary, normalized
from ravi_django.kernel import ChatMessage, DataBlock, ImageBlock, Role, TextBlock, ToolResultBlock
from tests.support.conversations import assistant, calls, conversations, results, system, tool_row, unpaired, user
from tests.support.world import task_ctx
from tests.unit.agents.compaction.test_summarization import Run

small = st.integers(4, 12)
some_tokens = st.integers(1, 120)

strategies = st.one_of(
    st.builds(ToolResultCompaction, st.integers(1, 3), keep_newest=st.integers(0, 2)),
    st.builds(SelectiveToolCallCompaction, st.integers(0, 4)), st.builds(SlidingWindowCompaction, small),
    st.builds(SummarizationCompaction, small, keep_last=st.integers(1, 3)),
    st.builds(lambda most: SummarizationCompaction(max_tokens=most), some_tokens),
    st.builds(TruncationCompaction, some_tokens),
    st.builds(lambda n, most: TokenBudgetComposed(SelectiveToolCallCompaction(n), max_tokens=most), small,
        some_tokens),
    st.builds(lambda most: CompactionPipeline(ToolResultCompaction(2), SelectiveToolCallCompaction(2),
        SummarizationCompaction(most, keep_last=2)), small)
)  # fmt: skip


def view_of(strategy: Any, messages: Sequence[ChatMessage], run: Run | None = None) -> list[ChatMessage]:
    async def inside() -> list[ChatMessage]:
        task_ctx.set(run or Run())
        return await strategy.compact(messages)

    return asyncio.run(inside())


@given(strategies, conversations())
def test_every_view_is_a_conversation_that_providers_take(strategy: Any, messages: list[ChatMessage]) -> None:
    before, said = list(map(id, messages)), [message.model_dump() for message in messages]
    view = view_of(strategy, messages)
    assert view is not messages
    assert list(map(id, messages)) == before, "the given list was changed"
    assert [message.model_dump() for message in messages] == said, "a given message was changed"

    assert unpaired(view, messages) == set(), "each result has its call, and each call its result"
    open_calls: set[str] = set()
    for message in view:
        if message.role is Role.TOOL:
            found = {block.call_id for block in message.content}
            assert found <= open_calls, "results come right behind their call"
            open_calls -= found
        else:
            open_calls = {call.call_id for call in message.tool_calls}

    leading = [message for message in messages if message.role is Role.SYSTEM]
    shown = [message for message in view if message.role is Role.SYSTEM]
    assert [message for message in shown if keeps_of(message) is None] == leading, "system messages stay"
    assert len([message for message in shown if keeps_of(message) is not None]) <= 1, "one summary"
    assert all(message.role is Role.SYSTEM for message in view[: len(shown)]), "and come first"

    users = [message for message in messages if message.role is Role.USER]
    assert not users or any(message is users[-1] for message in view), "the user's last words stay"


@given(strategies, conversations())
def test_a_view_of_a_transcript_or_of_a_view_is_the_same(strategy: Any, messages: list[ChatMessage]) -> None:
    view = view_of(strategy, messages)
    assert view_of(strategy, Transcript(messages)) == view
    if not any(isinstance(part, SummarizationCompaction) for part in (strategy, *getattr(strategy, "strategies", ()))):
        assert view_of(strategy, view) == view


@pytest.mark.parametrize(("make", "options", "name"), [
    (SelectiveToolCallCompaction, {"keep_last": -1}, "keep_last"),
    (ToolResultCompaction, {"max_chars": 0}, "max_chars"), (ToolResultCompaction, {"max_chars": 1.5}, "max_chars"),
    (ToolResultCompaction, {"keep_newest": -1}, "keep_newest"),
    (TruncationCompaction, {"max_tokens": 0}, "max_tokens"),
    *((SlidingWindowCompaction, {"max_messages": bad}, "max_messages") for bad in (0, -1, 1.5, True, "3")),
    (SummarizationCompaction, {"max_messages": 0}, "max_messages"),
    (SummarizationCompaction, {"max_tokens": -1}, "max_tokens"),
    (SummarizationCompaction, {"keep_last": 0}, "keep_last"),
    (SummarizationCompaction, {"max_messages": 10, "keep_last": 10}, "keep_last"),
    *((TokenBudgetComposed, {"fraction": bad}, "fraction") for bad in (0, 1.1, True)),
    (TokenBudgetComposed, {"max_tokens": 0}, "max_tokens"),
])  # fmt: skip
def test_numbers_are_checked(make: Any, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(**options)


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
        assert (normalized(transcript), normalized(list(transcript))) == ([*view, answer], [*view, answer])


class Counting(Transcript):
    looked = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.looked += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.parametrize("make", [
    lambda: SlidingWindowCompaction(20),
    lambda: CompactionPipeline(SlidingWindowCompaction(20), ToolResultCompaction(2)),
    lambda: TokenBudgetComposed(SlidingWindowCompaction(20), max_tokens=200), lambda: TruncationCompaction(200),
])  # fmt: skip
def test_one_more_turn_of_a_long_run_costs_what_the_window_costs(make: Any) -> None:
    def looked(turns: int) -> int:
        strategy, transcript = make(), Counting([ChatMessage.of("system", "s"), ChatMessage.of("user", "task")])
        for number in range(turns):
            transcript.append(ChatMessage.of(Role.ASSISTANT, f"step {number:05}"))
        view_of(strategy, transcript)
        transcript.append(ChatMessage.of(Role.ASSISTANT, "one more"))
        before = transcript.looked
        view_of(strategy, transcript)
        return transcript.looked - before

    assert max(looked(5_000), looked(100)) <= 150


def window(messages: list[ChatMessage], max_messages: int) -> list[ChatMessage]:
    return asyncio.run(SlidingWindowCompaction(max_messages).compact(messages))


@given(conversations(), st.integers(1, 12))
def test_a_window_is_the_end_of_its_conversation(messages: list[ChatMessage], max_messages: int) -> None:
    view = window(messages, max_messages)
    longest_turn = 1
    for message in reversed(messages):
        if message.role is not Role.TOOL:
            break
        longest_turn += 1
    leading = [message for message in messages if message.role is Role.SYSTEM]
    assert len(view) <= max(max_messages * 3 // 2, len(leading) + 1 + longest_turn)  # with the user's words

    places = [next(i for i, message in enumerate(messages) if message is shown) for shown in view]
    assert places == sorted(set(places)), "the order is kept"
    assert not messages or view[-1] is messages[-1], "the newest message is always there"
    spoken = [message for message in view if message.role is not Role.SYSTEM]
    if max_messages >= 4 and spoken and max_messages - len(leading) >= 4:  # the user's words and the longest turn
        assert spoken[0].role is Role.USER
    if max_messages >= 2:
        first = leading[: max_messages - 1]
        assert view[: len(first)] == first, "leading system messages stay"

    whole = window(messages, max(1, len(messages)))
    assert whole == messages and whole is not messages, "what fits is shown whole"


def test_the_task_stays_in_sight() -> None:
    # a chat starts at the user's message
    chat = [user("1"), assistant(), user("2"), assistant(), user("3")]
    assert window(chat, 3) == chat[2:]
    # a long row of tool calls keeps the task in sight
    turns = [message for n in range(10) for message in (calls(f"c{n}"), results(f"c{n}"))]
    messages = [system(), user("the task"), *turns]
    view = window(messages, 6)
    assert view == [messages[0], messages[1], *turns[-4:]]
    # a follow up still sees the end of a long row
    messages = [user("the task"), *turns, assistant("done"), user("and?")]
    assert window(messages, 5) == [messages[0], *turns[-2:], *messages[-2:]]
    # a result whose call was not read is left out
    messages = [results("lost"), assistant(), user(), assistant()]
    assert window(messages, 10) == messages[2:]
    # the last call stays whole in a window too small for it
    messages = [user(), calls("1", "2"), results("1"), results("2")]
    assert (window(messages, 1), window([assistant(), *messages[1:]], 1)) == (messages, messages[1:])
    # nothing but a result is no view
    assert (window([results("1")], 5), window([], 5)) == ([], [])
    # a correction is not the users words
    told = ChatMessage(role=Role.USER, name=CORRECTION, content=[TextBlock(text="fix it")])
    said = [ChatMessage.of(Role.USER, "which?"), ChatMessage.of(Role.ASSISTANT, "x"), told]
    messages = Transcript([*said, ChatMessage.of(Role.ASSISTANT, "y")])
    assert messages.users == [0]
    assert window(messages, 2)[0].text == window(list(messages), 2)[0].text == "which?"
    assert window_of(messages[2:], 2, lambda: (None, said[0]))[0].text == "which?"


def truncated(messages: list[ChatMessage], max_tokens: int) -> list[ChatMessage]:
    return asyncio.run(TruncationCompaction(max_tokens).compact(messages))


def tokens(messages: list[ChatMessage]) -> int:
    return asyncio.run(TokenCounter().total(messages))


def test_the_oldest_turns_go_until_it_fits() -> None:
    # what fits is shown whole
    messages = [system(), user(), assistant()]
    assert truncated(messages, tokens(messages)) == messages
    # the oldest turns go and it begins with the user's words
    chat = [message for n in range(10) for message in (user(f"question {n}"), assistant(f"answer {n}"))]
    messages = [system("be brief"), *chat]
    view = truncated(messages, tokens([messages[0], *chat[-5:]]))
    assert view == [messages[0], *chat[-4:]]
    # the user's words stay however far back and groups whole
    row = tool_row(10, text="result " * 10)
    messages = [system(), user("the task"), *row]
    view = truncated(messages, tokens([messages[0], messages[1], *row[-4:]]) + 5)
    assert view == [messages[0], messages[1], *row[-4:]]
    # a conversation without a user keeps its end
    messages = [*(assistant("a" * 100) for _ in range(5)), *tool_row(1)]
    view = truncated(messages, 40)
    assert [message.role for message in view] == [Role.ASSISTANT, Role.TOOL]
    # results are cut when the last turn alone is too long
    messages = [system(), user("the task"), calls("1", "2"), results("1", "2", text="x" * 8_000)]
    view = truncated(messages, 500)
    assert view[:3] == messages[:3]
    assert tokens(view) <= 500
    assert "characters cut" in view[3].text
    assert len(view[3].text) > 500
    # errors are cut too in the end
    messages = [user(), calls("1"), results("1", text="x" * 8_000, is_error=True)]
    assert tokens(truncated(messages, 200)) <= 200
    # what must stay stays though it does not fit
    messages = [system("s" * 400), assistant(), user("u" * 400)]
    assert truncated(messages, 10) == [messages[0], messages[2]]
    # nothing but system messages or nothing at all
    assert (truncated([system("s" * 100)], 1), truncated([], 1)) == ([system("s" * 100)], [])


def selected(messages: list[ChatMessage], keep_last: int = 5) -> list[ChatMessage]:
    return asyncio.run(SelectiveToolCallCompaction(keep_last).compact(messages))


def test_the_newest_groups_of_calls_stay() -> None:
    row = tool_row(8)
    assert selected([system(), user(), *row, assistant()]) == [system(), user(), *row[-10:], assistant()]
    # what was said between the groups stays
    first = [user("1"), calls("a", "b"), results("a"), results("b"), assistant("done")]
    second = [user("2"), calls("c"), results("c")]
    assert selected([*first, *second], 1) == [user("1"), assistant("done"), *second]
    # fewer groups than are kept stay all
    messages = [user(), *tool_row(5)]
    assert selected(messages) == messages
    assert selected(messages) is not messages
    # none may be kept
    assert selected([user(), *tool_row(2), assistant()], 0) == [user(), assistant()]


def trimmed(messages: list[ChatMessage], **options: Any) -> list[ChatMessage]:
    return asyncio.run(ToolResultCompaction(**options).compact(messages))


def test_which_results_are_cut() -> None:
    # a long result ends with a marker that says how much was cut
    messages = [user("u" * 600), calls("1"), results("1", text="x" * 1_234)]
    view = trimmed(messages)
    assert (view[:2], view[2].text) == (messages[:2], "x" * 500 + "… [734 characters cut]")
    assert messages[2].text == "x" * 1_234
    # what is not longer stays the very message
    messages = [calls("1"), results("1", text="x" * 500)]
    assert trimmed(messages)[1] is messages[1]
    # errors stay whole
    messages = [calls("1"), results("1", text="x" * 1_000, is_error=True)]
    assert trimmed(messages) == messages
    # the newest results stay whole on demand
    messages = [*tool_row(3, text="x" * 50), user()]
    view = trimmed(messages, max_chars=10, keep_newest=2)
    assert [len(message.text) > 40 for message in view if message.role is Role.TOOL] == [False, True, True]
    assert trimmed(messages, max_chars=10, keep_newest=9) == messages
    # a result is cut once
    messages = tool_row(1, text="x" * 1_000)
    assert trimmed(messages)[1] is trimmed(messages)[1]
    assert trimmed(messages)[1] is not trimmed(messages, max_chars=100)[1]
    # pictures stay and data is cut as its text
    picture = ImageBlock(url="https://example.com/a.png")
    content: list[Any] = [DataBlock(data=["x" * 100]), picture, TextBlock(text="y" * 100)]
    message = ChatMessage(role=Role.TOOL, content=[ToolResultBlock(call_id="1", content=content)])
    (block,) = trimmed([message], max_chars=20, marker="<{cut}>")[0].content
    assert isinstance(block, ToolResultBlock)
    assert block.content == [TextBlock(text='["' + "x" * 18 + "<185>"), picture]


class Upper:
    async def compact(self, messages: Any) -> list[ChatMessage]:
        return [ChatMessage.of(message.role, message.text.upper()) for message in messages]


def test_a_pipeline_runs_its_strategies_in_order() -> None:
    pipeline = CompactionPipeline(SlidingWindowCompaction(2), Upper())
    view = asyncio.run(pipeline.compact([user("a"), assistant("b"), user("c")]))
    assert [message.text for message in view] == ["C"]
    # empty pipeline gives a copy
    messages = [user()]
    view = asyncio.run(CompactionPipeline().compact(messages))
    assert view == messages
    assert view is not messages
    # a summary amid the messages is brought to the front
    kept, after = [user("3"), assistant("4")], [user("5")]
    summary = make_summary("1 and 2", 2)
    view = asyncio.run(CompactionPipeline().compact([user("1"), assistant("2"), *kept, summary, *after]))
    assert view == [summary, *kept, *after]
    # pipeline refuses what is no strategy
    with pytest.raises(TypeError, match="not a compaction strategy"):
        CompactionPipeline(SlidingWindowCompaction)  # the class, not an instance
    # its reach is that of its first strategies
    assert CompactionPipeline(SlidingWindowCompaction(70), Upper()).reach == 113
    assert CompactionPipeline(Upper(), SlidingWindowCompaction(70)).reach is None
    assert CompactionPipeline().reach is None
    # a window behind strategies that look at the end alone bounds what is read
    trimming, selecting, window = ToolResultCompaction(), SelectiveToolCallCompaction(), SlidingWindowCompaction(100)
    assert CompactionPipeline(trimming, window).reach == 158
    assert CompactionPipeline(trimming, selecting, window).reach == 1_580  # what is left out makes room for older turns
    assert CompactionPipeline(trimming, selecting).reach is None
    assert CompactionPipeline(SummarizationCompaction(500), window).reach == 2_000
    assert CompactionPipeline(TokenBudgetComposed(trimming)).reach == 1_000


@pytest.mark.parametrize("make", [
    lambda: TruncationCompaction(600), lambda: TokenBudgetComposed(ToolResultCompaction(30), max_tokens=600),
])  # fmt: skip
def test_the_start_moves_in_steps_also_after_a_restart(make: Any) -> None:
    """More than half of the room is filled, and a provider's cache has nearly all of each request."""
    said = [user("the task" if n % 9 == 0 else f"go on {n}") for n in range(300)]
    rows = [m for n in range(300) for m in (said[n], calls(f"c{n}"), results(f"c{n}", text="x" * (n % 7 * 20)))]
    transcript, starts = Transcript([system()]), []
    for message in rows:
        transcript.append(message)
        view = view_of(make(), transcript)
        starts.append(next(index for index, one in enumerate(rows) if one is view[1]))
        if len(transcript) > 200:
            assert tokens(view) >= 300
            newest = Transcript([system(), *transcript[-150:]])  # as another run reads it
            assert view_of(make(), newest)[1] is view[1]
    moves = sum(later != before for before, later in pairwise(starts))
    assert moves <= len(rows) / 10, moves
