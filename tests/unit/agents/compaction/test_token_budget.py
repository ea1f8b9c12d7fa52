"""How messages are counted, and a view that fits into the model's window."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.tokens import DEFAULT_WINDOW, TokenCounter, estimate
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction, ToolResultCompaction
from ravi_django.agents.memory.transcript import Transcript
from ravi_django.kernel import ChatMessage, ImageBlock, Role, TextBlock
from tests.support import world
from tests.support.cases import case
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


def test_strategies_run_in_order_until_it_fits() -> None:
    # what fits is shown as it is and no strategy runs
    strategy, messages = Recording(), [user("u" * 800)]
    view = compacted(messages, strategy, model=Model())
    assert view == messages
    assert view is not messages
    assert strategy.calls == 0
    first, second, third = Recording(), Recording(), Recording()
    view = compacted([user("a" * 300)] * 4, first, second, third, model=Model())
    assert len(view) == 2  # 600 of 800
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)
    # the oldest turns go when the strategies are not enough
    chat = [user("1" * 300), assistant("2" * 300), user("3" * 300), assistant("4" * 300)]
    assert compacted(chat, ToolResultCompaction(), model=Model()) == chat[2:]
    # what is no strategy is refused
    with pytest.raises(TypeError, match="not a compaction strategy"):
        TokenBudgetComposed(ToolResultCompaction)
    # calls keep their results and the system message stays
    messages = [system("s"), user("the task"), *tool_row(50, text="r" * 100)]
    view = compacted(messages, SlidingWindowCompaction(30), model=Model(window=500))
    assert view == [*messages[:2], *messages[-6:]]


def test_what_the_limit_is() -> None:
    # the fraction and a limit of ones own
    chat = [user("1" * 300), assistant("2" * 100), user("3" * 300)]
    assert compacted(chat, model=Model(), fraction=0.5) == chat[2:]
    assert compacted(chat, model=Model(window=None), max_tokens=700) == chat
    assert compacted(chat, model=Model(), max_tokens=699) == chat[2:]
    # the window of an unknown model is the documented one
    fits, long = [user("x" * (DEFAULT_WINDOW * 3))] * 1, [user("x"), user("x" * 4 * DEFAULT_WINDOW)]
    assert (compacted(fits), compacted(long)) == (fits, long[1:])
    assert asyncio.run(TokenCounter(Model(window=None)).window()) == DEFAULT_WINDOW

    # the model of the context counts
    async def inside() -> list[ChatMessage]:
        task_model.set(Model(window=10))
        return await TokenBudgetComposed().compact([user("123456789"), user("12345678")])

    assert [message.text for message in asyncio.run(inside())] == ["12345678"]


def test_a_message_is_counted_once_for_each_model() -> None:
    model, messages = Model(), [user("a"), assistant("b")]
    transcript = Transcript(messages)
    for _ in range(3):
        compacted(messages, model=model)
        compacted(transcript, model=model)
    transcript.append(user("c"))
    compacted(transcript, model=model)
    assert (model.counted, transcript.counted) == (3, {"tokens:counting": (3, 3)})

    messages = [user("abc")]
    assert asyncio.run(TokenCounter(Model()).total(messages)) == 3
    assert asyncio.run(TokenCounter().total(messages)) == estimate(messages[0])


def test_an_estimate_is_about_four_characters_a_token(caplog: pytest.LogCaptureFixture) -> None:
    # the estimate is about four characters a token and flat for a picture
    for message, least, most in [
        (user("word " * 80), 90, 120), (user("语" * 100), 70, 120), (calls("1", "2"), 5, 40),
        (results("1", text="x" * 400), 100, 120),
        (ChatMessage(role=Role.USER, content=[ImageBlock(data="A" * 400_000), TextBlock(text="?")]), 1_000, 1_100),
        (user(""), 1, 10),
    ]:  # fmt: skip
        assert least <= estimate(message) <= most, message

    # a tokenizer that fails is an estimate
    class Broken(Model):
        def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
            raise OSError("no tokenizer file")

        async def context_window(self) -> int:
            raise OSError("no price list")

    counter = TokenCounter(Broken())
    assert asyncio.run(counter.total([user("abc")])) == estimate(user("abc"))
    assert asyncio.run(counter.window()) == DEFAULT_WINDOW
    assert "estimating" in caplog.text


LONG = "x" * 16_000


class Slow:
    """Counts on its own, and notes how it was asked."""

    name = "slow"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.threads: set[str] = set()

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        self.asked.append(len(messages))
        self.threads.add(threading.current_thread().name)
        return len(messages)


class Async(Slow):
    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        return super().count_tokens(messages)


def test_counting_runs_beside_the_event_loop() -> None:
    # a model is given all that is new at once
    model, messages = Async(), [user(str(n)) for n in range(5)]
    assert (asyncio.run(TokenCounter(model).total(messages)), model.asked[0]) == (5, 5)
    assert asyncio.run(TokenCounter(model).total([*messages, user("new")])) == 6
    assert model.asked[6:] == [1]
    # much is not counted on the event loop
    for text, on_the_loop in [("short", True), (LONG, False)]:
        with case(text, on_the_loop):
            model = Slow()
            assert asyncio.run(TokenCounter(model).total([user(text + str(n)) for n in range(5)])) == 5
            assert (threading.current_thread().name in model.threads) is on_the_loop


def test_others_have_their_turn_while_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def counting() -> None:
        task = asyncio.create_task(other())
        await TokenCounter().total([user(LONG) for _ in range(50)])
        task.cancel()

    world.patch(monkeypatch, "TOKENS_TURN_S", -1.0)

    asyncio.run(counting())

    assert len(turns) >= 40
