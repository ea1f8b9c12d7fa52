import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ravi_django.agents.compaction import SlidingWindowCompaction, TokenBudgetComposed, ToolResultCompaction
from ravi_django.agents.compaction.tokens import DEFAULT_WINDOW, TokenCounter, estimate
from ravi_django.agents.transcript import Transcript
from ravi_django.kernel import ChatMessage, ImageBlock, Role, TextBlock
from tests.support.conversations import assistant, calls, results, system, tool_row, user
from tests.support.world import task_model


class Model:
    """A token a character."""

    def __init__(self, window: Any = 1_000, name: str = "counting") -> None:
        self.name = name
        self.window = window
        self.counted = 0

    async def context_window(self) -> Any:
        return self.window

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        self.counted += len(messages)
        return sum(len(message.text) for message in messages)


class Recording:
    """Leaves out the oldest message."""

    def __init__(self) -> None:
        self.calls = 0

    async def compact(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        self.calls += 1
        return list(messages[1:])


def compacted(messages: list[ChatMessage], *strategies: Any, **options: Any) -> list[ChatMessage]:
    return asyncio.run(TokenBudgetComposed(*strategies, **options).compact(messages))


def test_what_fits_is_shown_as_it_is_and_no_strategy_runs() -> None:
    strategy, messages = Recording(), [user("u" * 800)]

    view = compacted(messages, strategy, model=Model())

    assert view == messages
    assert view is not messages
    assert strategy.calls == 0


def test_strategies_run_in_order_until_it_fits() -> None:
    first, second, third = Recording(), Recording(), Recording()

    view = compacted([user("a" * 300)] * 4, first, second, third, model=Model())

    assert len(view) == 2  # 600 of 800
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)


def test_the_oldest_turns_go_when_the_strategies_are_not_enough() -> None:
    chat = [user("1" * 300), assistant("2" * 300), user("3" * 300), assistant("4" * 300)]

    assert compacted(chat, ToolResultCompaction(), model=Model()) == chat[2:]


def test_the_fraction_and_a_limit_of_ones_own() -> None:
    chat = [user("1" * 300), assistant("2" * 100), user("3" * 300)]

    assert compacted(chat, model=Model(), fraction=0.5) == chat[2:]
    assert compacted(chat, model=Model(window=None), max_tokens=700) == chat
    assert compacted(chat, model=Model(), max_tokens=699) == chat[2:]


def test_the_window_of_an_unknown_model_is_the_documented_one() -> None:
    fits, long = [user("x" * (DEFAULT_WINDOW * 3))] * 1, [user("x"), user("x" * 4 * DEFAULT_WINDOW)]

    assert compacted(fits) == fits
    assert compacted(long) == long[1:]
    assert asyncio.run(TokenCounter(Model(window=None)).window()) == DEFAULT_WINDOW


def test_the_model_of_the_context_counts() -> None:
    async def inside() -> list[ChatMessage]:
        task_model.set(Model(window=10))
        return await TokenBudgetComposed().compact([user("123456789"), user("12345678")])

    assert [message.text for message in asyncio.run(inside())] == ["12345678"]


def test_a_message_is_counted_once() -> None:
    model, messages = Model(), [user("a"), assistant("b")]
    transcript = Transcript(messages)

    for _ in range(3):
        compacted(messages, model=model)
        compacted(transcript, model=model)
    transcript.append(user("c"))
    compacted(transcript, model=model)

    assert model.counted == 3
    assert transcript.counted == {"tokens:counting": (3, 3)}


def test_two_models_count_apart() -> None:
    messages = [user("abc")]

    assert asyncio.run(TokenCounter(Model()).total(messages)) == 3
    assert asyncio.run(TokenCounter().total(messages)) == estimate(messages[0])


def test_a_tokenizer_that_fails_is_an_estimate(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Model):
        def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
            raise OSError("no tokenizer file")

        async def context_window(self) -> int:
            raise OSError("no price list")

    counter = TokenCounter(Broken())

    assert asyncio.run(counter.total([user("abc")])) == estimate(user("abc"))
    assert asyncio.run(counter.window()) == DEFAULT_WINDOW
    assert "estimating" in caplog.text


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [
        (user("word " * 80), 90, 120),
        (user("语" * 100), 70, 120),
        (calls("1", "2"), 5, 40),
        (results("1", text="x" * 400), 100, 120),
        (ChatMessage(role=Role.USER, content=[ImageBlock(data="A" * 400_000), TextBlock(text="?")]), 1_000, 1_100),
        (user(""), 1, 10),
    ],
)
def test_the_estimate_is_about_four_characters_a_token_and_flat_for_a_picture(
    message: ChatMessage, least: int, most: int
) -> None:
    assert least <= estimate(message) <= most


def test_calls_keep_their_results_and_the_system_message_stays() -> None:
    messages = [system("s"), user("the task"), *tool_row(50, text="r" * 100)]

    view = compacted(messages, SlidingWindowCompaction(30), model=Model(window=500))

    assert view == [*messages[:2], *messages[-6:]]


@pytest.mark.parametrize(("name", "bad"), [("fraction", 0), ("fraction", 1.1), ("fraction", True), ("max_tokens", 0)])
def test_numbers_are_checked(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=name):
        TokenBudgetComposed(**{name: bad})


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(TypeError, match="not a compaction strategy"):
        TokenBudgetComposed(ToolResultCompaction)  # type: ignore[arg-type]
