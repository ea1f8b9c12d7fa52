import asyncio

import pytest

from ravi_django.agents.compaction import TruncationCompaction
from ravi_django.agents.compaction.tokens import TokenCounter
from ravi_django.kernel import ChatMessage, Role
from tests.support.conversations import assistant, calls, results, system, tool_row, user


def compacted(messages: list[ChatMessage], max_tokens: int) -> list[ChatMessage]:
    return asyncio.run(TruncationCompaction(max_tokens).compact(messages))


def tokens(messages: list[ChatMessage]) -> int:
    return asyncio.run(TokenCounter().total(messages))


def test_what_fits_is_shown_whole() -> None:
    messages = [system(), user(), assistant()]

    assert compacted(messages, tokens(messages)) == messages


def test_the_oldest_turns_go_and_it_begins_with_the_users_words() -> None:
    chat = [message for n in range(10) for message in (user(f"question {n}"), assistant(f"answer {n}"))]
    messages = [system("be brief"), *chat]

    view = compacted(messages, tokens([messages[0], *chat[-5:]]))

    assert view == [messages[0], *chat[-4:]]


def test_the_users_words_stay_however_far_back_and_groups_whole() -> None:
    row = tool_row(10, text="result " * 10)
    messages = [system(), user("the task"), *row]

    view = compacted(messages, tokens([messages[0], messages[1], *row[-4:]]) + 5)

    assert view == [messages[0], messages[1], *row[-4:]]


def test_results_are_cut_when_the_last_turn_alone_is_too_long() -> None:
    messages = [system(), user("the task"), calls("1", "2"), results("1", "2", text="x" * 8_000)]

    view = compacted(messages, 500)

    assert view[:3] == messages[:3]
    assert tokens(view) <= 500
    assert "characters cut" in view[3].text
    assert len(view[3].text) > 500


def test_errors_are_cut_too_in_the_end() -> None:
    messages = [user(), calls("1"), results("1", text="x" * 8_000, is_error=True)]

    assert tokens(compacted(messages, 200)) <= 200


def test_what_must_stay_stays_though_it_does_not_fit() -> None:
    messages = [system("s" * 400), assistant(), user("u" * 400)]

    assert compacted(messages, 10) == [messages[0], messages[2]]


def test_nothing_but_system_messages_or_nothing_at_all() -> None:
    assert compacted([system("s" * 100)], 1) == [system("s" * 100)]
    assert compacted([], 1) == []


def test_a_conversation_without_a_user_keeps_its_end() -> None:
    messages = [*(assistant("a" * 100) for _ in range(5)), *tool_row(1)]

    view = compacted(messages, 40)

    assert [message.role for message in view] == [Role.ASSISTANT, Role.TOOL]


def test_the_number_is_checked() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        TruncationCompaction(0)
