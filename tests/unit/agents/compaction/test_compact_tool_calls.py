import asyncio

import pytest

from ravi_django.agents.compaction import SelectiveToolCallCompaction
from ravi_django.kernel import ChatMessage
from tests.support.conversations import assistant, calls, results, system, tool_row, user


def compacted(messages: list[ChatMessage], keep_last: int = 5) -> list[ChatMessage]:
    return asyncio.run(SelectiveToolCallCompaction(keep_last).compact(messages))


def test_the_newest_groups_stay_and_older_ones_go_with_their_results() -> None:
    row = tool_row(8)

    assert compacted([system(), user(), *row, assistant()]) == [system(), user(), *row[-10:], assistant()]


def test_what_was_said_between_the_groups_stays() -> None:
    first = [user("1"), calls("a", "b"), results("a"), results("b"), assistant("done")]
    second = [user("2"), calls("c"), results("c")]

    assert compacted([*first, *second], 1) == [user("1"), assistant("done"), *second]


def test_fewer_groups_than_are_kept_stay_all() -> None:
    messages = [user(), *tool_row(5)]

    assert compacted(messages) == messages
    assert compacted(messages) is not messages


def test_none_may_be_kept() -> None:
    assert compacted([user(), *tool_row(2), assistant()], 0) == [user(), assistant()]


def test_the_number_is_checked() -> None:
    with pytest.raises(ValueError, match="keep_last"):
        SelectiveToolCallCompaction(-1)
