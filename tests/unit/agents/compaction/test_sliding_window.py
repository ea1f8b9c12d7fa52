import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_django.agents.compaction import SlidingWindowCompaction
from ravi_django.agents.history import window_of
from ravi_django.agents.transcript import CORRECTION, Transcript
from ravi_django.kernel import ChatMessage, Role, TextBlock, ToolResultBlock
from tests.support.conversations import assistant, calls, conversations, results, system, user


def window(messages: list[ChatMessage], max_messages: int) -> list[ChatMessage]:
    return asyncio.run(SlidingWindowCompaction(max_messages).compact(messages))


@given(conversations(), st.integers(1, 12))
def test_no_tool_result_without_its_call_and_no_call_without_its_results(
    messages: list[ChatMessage], max_messages: int
) -> None:
    view = window(messages, max_messages)

    asked = [call.call_id for message in view for call in message.tool_calls]
    answered = [b.call_id for message in view for b in message.content if isinstance(b, ToolResultBlock)]
    everything_answered = {b.call_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)}
    assert set(answered) == set(asked) & everything_answered
    assert len(answered) == len(set(answered))


@given(conversations(), st.integers(1, 12))
def test_at_most_n_messages_but_for_a_last_turn_that_is_longer(messages: list[ChatMessage], max_messages: int) -> None:
    view = window(messages, max_messages)

    longest_turn = 1
    for message in reversed(messages):
        if message.role is not Role.TOOL:
            break
        longest_turn += 1
    leading = len([message for message in view if message.role is Role.SYSTEM])
    assert len(view) <= max(max_messages, leading + 1 + longest_turn)  # with the user's words


@given(conversations(), st.integers(1, 12))
def test_the_newest_message_is_always_there_and_the_order_is_kept(
    messages: list[ChatMessage], max_messages: int
) -> None:
    view = window(messages, max_messages)

    places = [next(i for i, message in enumerate(messages) if message is shown) for shown in view]
    assert places == sorted(set(places))
    assert not messages or view[-1] is messages[-1]


@given(conversations(), st.integers(4, 12))
def test_after_the_system_messages_comes_a_user_message(messages: list[ChatMessage], max_messages: int) -> None:
    view = [message for message in window(messages, max_messages) if message.role is not Role.SYSTEM]

    room = max_messages - len([message for message in messages if message.role is Role.SYSTEM])
    if view and room >= 4:  # the user's words and the longest turn
        assert view[0].role is Role.USER


@given(conversations(), st.integers(2, 12))
def test_leading_system_messages_stay(messages: list[ChatMessage], max_messages: int) -> None:
    leading = [message for message in messages if message.role is Role.SYSTEM][: max_messages - 1]

    assert window(messages, max_messages)[: len(leading)] == leading


@given(conversations())
def test_what_fits_is_shown_whole(messages: list[ChatMessage]) -> None:
    view = window(messages, max(1, len(messages)))

    assert view == messages
    assert view is not messages


@given(conversations(), st.integers(1, 12))
def test_the_given_list_is_not_changed(messages: list[ChatMessage], max_messages: int) -> None:
    before = list(messages)

    window(messages, max_messages)

    assert [id(message) for message in messages] == [id(message) for message in before]


def test_a_chat_starts_at_the_users_message() -> None:
    chat = [user("1"), assistant(), user("2"), assistant(), user("3")]

    assert window(chat, 4) == chat[2:]


def test_a_long_row_of_tool_calls_keeps_the_task_in_sight() -> None:
    turns = [message for n in range(10) for message in (calls(f"c{n}"), results(f"c{n}"))]
    messages = [system(), user("the task"), *turns]

    view = window(messages, 6)

    assert view == [messages[0], messages[1], *turns[-4:]]


def test_a_follow_up_still_sees_the_end_of_a_long_row() -> None:
    turns = [message for n in range(10) for message in (calls(f"c{n}"), results(f"c{n}"))]
    messages = [user("the task"), *turns, assistant("done"), user("and?")]

    assert window(messages, 5) == [messages[0], *turns[-2:], *messages[-2:]]


def test_a_result_whose_call_was_not_read_is_left_out() -> None:
    messages = [results("lost"), assistant(), user(), assistant()]

    assert window(messages, 10) == messages[2:]


def test_the_last_call_stays_whole_in_a_window_too_small_for_it() -> None:
    messages = [user(), calls("1", "2"), results("1"), results("2")]

    assert window(messages, 1) == messages
    assert window([assistant(), *messages[1:]], 1) == messages[1:]


def test_nothing_but_a_result_is_no_view() -> None:
    assert window([results("1")], 5) == []
    assert window([], 5) == []


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3"])
def test_window_must_be_a_whole_number_from_one(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_messages"):
        SlidingWindowCompaction(bad)


class Counting(list[ChatMessage]):
    """Counts the messages that are looked at."""

    looked = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.looked += len(found) if isinstance(index, slice) else 1
        return found


@given(conversations(), st.integers(1, 12))
def test_a_transcript_gives_the_same_view_as_a_list(messages: list[ChatMessage], max_messages: int) -> None:
    half = len(messages) // 2
    transcript = Transcript(messages[:half])
    for message in messages[half:]:
        transcript.append(message)

    assert window(transcript, max_messages) == window(messages, max_messages)


def test_a_long_row_in_a_transcript_costs_the_window_alone() -> None:
    class CountingTranscript(Transcript):
        looked = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            self.looked += len(found) if isinstance(index, slice) else 1
            return found

    def looked(turns: int) -> int:
        row = [message for n in range(turns) for message in (calls(f"c{n}"), results(f"c{n}"))]
        transcript = CountingTranscript([system(), user(), *row])
        assert window(transcript, 20)[1].role is Role.USER
        return transcript.looked

    assert looked(10_000) == looked(100) <= 60


def test_cost_is_that_of_the_window_not_of_the_conversation() -> None:
    def looked(turns: int) -> int:
        chat = Counting(message for _ in range(turns) for message in (user(), assistant()))
        window(chat, 20)
        return chat.looked

    assert looked(10_000) == looked(100) <= 60


def test_a_correction_is_not_the_users_words() -> None:
    told = ChatMessage(role=Role.USER, name=CORRECTION, content=[TextBlock(text="mend it")])
    said = [ChatMessage.of(Role.USER, "which?"), ChatMessage.of(Role.ASSISTANT, "x"), told]
    messages = Transcript([*said, ChatMessage.of(Role.ASSISTANT, "y")])

    assert messages.users == [0]
    assert window(messages, 2)[0].text == window(list(messages), 2)[0].text == "which?"
    assert window_of(messages[2:], 2, lambda: (None, said[0]))[0].text == "which?"
