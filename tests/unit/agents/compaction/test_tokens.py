import asyncio
import threading
from collections.abc import Sequence

import pytest

from ravi_django.agents.compaction.tokens import TokenCounter
from ravi_django.capabilities.llm import knowledge
from ravi_django.kernel import ChatMessage
from tests.support import world
from tests.support.conversations import user

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
    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:  # type: ignore[override]
        return super().count_tokens(messages)


def test_a_model_is_given_all_that_is_new_at_once() -> None:
    model, messages = Async(), [user(str(n)) for n in range(5)]

    assert asyncio.run(TokenCounter(model).total(messages)) == 5

    assert model.asked[0] == 5
    assert asyncio.run(TokenCounter(model).total([*messages, user("new")])) == 6
    assert model.asked[6:] == [1]


@pytest.mark.parametrize(("text", "on_the_loop"), [("short", True), (LONG, False)])
def test_much_is_not_counted_on_the_event_loop(text: str, on_the_loop: bool) -> None:
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


def test_a_counter_and_the_model_keep_their_figures_apart() -> None:
    """The model's has the tokens that an answer is primed with, once for a request; the counter's are of a message."""

    class LiteLLM:
        @staticmethod
        def token_counter(**options: object) -> int:
            return 10

    class Model:
        name = "gpt"

        async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
            return await knowledge.tokens_of(LiteLLM, "gpt", messages)

    messages = [user("a"), user("b")]
    assert asyncio.run(TokenCounter(Model()).total(messages)) == 2 * (10 + knowledge.REPLY_TOKENS)

    assert asyncio.run(Model().count_tokens(messages)) == 20 + knowledge.REPLY_TOKENS
