import asyncio
from typing import Any

import pytest

from ravi_django.agents.compaction import ToolResultCompaction
from ravi_django.kernel import ChatMessage, DataBlock, ImageBlock, Role, TextBlock, ToolResultBlock
from tests.support.conversations import calls, results, tool_row, user


def compacted(messages: list[ChatMessage], **options: Any) -> list[ChatMessage]:
    return asyncio.run(ToolResultCompaction(**options).compact(messages))


def test_a_long_result_ends_with_a_marker_that_says_how_much_was_cut() -> None:
    messages = [user("u" * 600), calls("1"), results("1", text="x" * 1_234)]

    view = compacted(messages)

    assert view[:2] == messages[:2]
    assert view[2].text == "x" * 500 + "… [734 characters cut]"
    assert messages[2].text == "x" * 1_234


def test_what_is_not_longer_stays_the_very_message() -> None:
    messages = [calls("1"), results("1", text="x" * 500)]

    assert compacted(messages)[1] is messages[1]


def test_errors_stay_whole() -> None:
    messages = [calls("1"), results("1", text="x" * 1_000, is_error=True)]

    assert compacted(messages) == messages


def test_the_newest_results_stay_whole_on_demand() -> None:
    messages = [*tool_row(3, text="x" * 50), user()]

    view = compacted(messages, max_chars=10, keep_newest=2)

    assert [len(message.text) > 40 for message in view if message.role is Role.TOOL] == [False, True, True]
    assert compacted(messages, max_chars=10, keep_newest=9) == messages


def test_pictures_stay_and_data_is_cut_as_its_text() -> None:
    picture = ImageBlock(url="https://example.com/a.png")
    content: list[Any] = [DataBlock(data=["x" * 100]), picture, TextBlock(text="y" * 100)]
    message = ChatMessage(role=Role.TOOL, content=[ToolResultBlock(call_id="1", content=content)])

    (block,) = compacted([message], max_chars=20, marker="<{cut}>")[0].content

    assert isinstance(block, ToolResultBlock)
    assert block.content == [TextBlock(text='["' + "x" * 18 + "<185>"), picture]


def test_a_result_is_cut_once() -> None:
    messages = tool_row(1, text="x" * 1_000)

    assert compacted(messages)[1] is compacted(messages)[1]
    assert compacted(messages)[1] is not compacted(messages, max_chars=100)[1]


@pytest.mark.parametrize(("name", "value"), [("max_chars", 0), ("max_chars", 1.5), ("keep_newest", -1)])
def test_numbers_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ToolResultCompaction(**{name: value})
