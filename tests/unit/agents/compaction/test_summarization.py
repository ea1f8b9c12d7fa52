import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ravi_django.agents.memory.compaction.summarization import INSTRUCTIONS, SCOPE, QuietModel, SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.transcript import keeps_of, make_summary, summary_text
from ravi_django.kernel import BudgetExhaustedError, ChatMessage, ModelError, ModelResponse, TextBlock
from ravi_django.testing import ScriptedModel
from tests.support.cases import case
from tests.support.conversations import assistant, calls, results, system, tool_row, user
from tests.support.world import task_ctx, task_may_summarize


class Run:
    """What a strategy needs of a RunContext. `decided` is what the journal says."""

    def __init__(self, *said: Any, decided: bool | None = None, model: Any = None) -> None:
        self.said = list(said or ["they talked"])
        self.model = model
        self.requests: list[list[ChatMessage]] = []
        self.models: list[Any] = []
        self.scopes: list[str] = []
        self._decided = decided

    async def llm(self, messages: Sequence[ChatMessage], *, options: Any = None, model: Any = None) -> ModelResponse:
        self.requests.append(list(messages))
        self.models.append(model)
        said = self.said[min(len(self.requests), len(self.said)) - 1]
        if isinstance(said, Exception):
            raise said
        return ModelResponse.of([TextBlock(text=said)])

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self.scopes.append(name)
        yield

    def decided(self, name: str) -> bool | None:
        assert name == SCOPE
        return self._decided


def compacted(run: Run | None, strategy: Any, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    async def inside() -> list[ChatMessage]:
        task_ctx.set(run)
        return await strategy.compact(messages)

    return asyncio.run(inside())


def chat(turns: int) -> list[ChatMessage]:
    return [message for n in range(turns) for message in (user(f"question {n}"), assistant(f"answer {n}"))]


def test_over_the_limit_all_but_the_newest_become_a_summary() -> None:
    # nothing happens up to the limit
    run, messages = Run(), [system(), *chat(5)]
    assert compacted(run, SummarizationCompaction(10, keep_last=4), messages) == messages
    assert run.requests == []
    run, messages = Run("short"), [system(), *chat(6)]
    view = compacted(run, SummarizationCompaction(10, keep_last=4), messages)
    assert view == [messages[0], make_summary("short", 4), *messages[-4:]]
    assert run.scopes == [SCOPE]
    ((told_how, told),) = run.requests
    assert told_how.text == INSTRUCTIONS
    assert "user: question 0" in told.text and "assistant: answer 3" in told.text
    assert "question 4" not in told.text
    # the last summary is updated and there is never a second one
    run, old = Run("newer"), make_summary("older things", 2)
    view = compacted(run, SummarizationCompaction(10, keep_last=4), [system(), old, *chat(6)])
    assert [summary_text(message) for message in view if keeps_of(message) is not None] == ["newer"]
    assert "older things" in run.requests[0][1].text and "question 0" in run.requests[0][1].text


def test_what_stays_beside_a_summary() -> None:
    # groups stay whole and the users words stay
    row = tool_row(8)
    messages = [user("the task"), *row]
    view = compacted(Run("short"), SummarizationCompaction(10, keep_last=5), messages)
    assert view == [make_summary("short", 4), messages[0], *row[-4:]]
    # a last group of more than is kept stays whole
    group = [calls("1", "2", "3"), results("1"), results("2"), results("3")]
    view = compacted(Run("short"), SummarizationCompaction(5, keep_last=2), [*chat(3), user("the task"), *group])
    assert view == [make_summary("short", 4), user("the task"), *group]
    # a limit of tokens keeps half of it at most
    run, messages = Run("short"), [user(f"{n}" * 400) for n in range(10)]  # about 100 tokens each
    view = compacted(run, SummarizationCompaction(max_tokens=800, keep_last=8), messages)
    assert view == [make_summary("short", 3), *messages[-3:]]
    assert compacted(run, SummarizationCompaction(max_tokens=2_000), messages) == messages


def test_without_a_summary_there_is_a_plain_window(caplog: pytest.LogCaptureFixture) -> None:
    # a call that fails for good leaves a plain window
    run, messages = Run(ModelError("too long", type="ContextWindowExceeded")), [system(), *chat(20)]
    view = compacted(run, SummarizationCompaction(10, keep_last=4), messages)
    assert view == [messages[0], *messages[-6:]]
    assert "too long" in caplog.text
    # an empty summary counts as a failure
    messages = chat(20)
    assert compacted(Run("  \n"), SummarizationCompaction(10, keep_last=4), messages) == messages[-6:]
    # outside of runs no model is called
    model, messages = ScriptedModel(["never"]), chat(20)
    view = compacted(None, SummarizationCompaction(10, keep_last=4, model=model), messages)
    assert (view, model.calls) == (messages[-6:], [])

    # where no summary would be kept none is made
    async def inside() -> list[ChatMessage]:
        task_ctx.set(run)
        task_may_summarize.set(False)
        return await SummarizationCompaction(10, keep_last=4).compact(messages)

    run, messages = Run(), chat(20)
    assert (asyncio.run(inside()), run.requests) == (messages[-6:], [])
    # a used up budget is not hidden
    with pytest.raises(BudgetExhaustedError):
        compacted(Run(BudgetExhaustedError("no tokens left")), SummarizationCompaction(10, keep_last=4), chat(20))


def test_a_replay_summarizes_where_the_journal_says_so() -> None:
    # a replay makes the recorded summary whatever it would decide
    recorded, strategy = Run("recorded", decided=True), SummarizationCompaction(100, keep_last=4)
    view = compacted(recorded, strategy, chat(6))
    assert view == [make_summary("recorded", 4), *chat(6)[-4:]]
    assert keeps_of(compacted(Run("recorded", decided=True), strategy, chat(1))[0]) is not None
    budget = TokenBudgetComposed(strategy, max_tokens=10_000)
    assert compacted(Run("recorded", decided=True), budget, chat(6))[0] == make_summary("recorded", 4)
    # a replay makes none where none was recorded
    run, messages = Run(decided=False), chat(20)
    assert compacted(run, SummarizationCompaction(10, keep_last=4), messages) == messages[-6:]
    assert run.requests == []
    # a replay asks for a failed summary where it was recorded
    strategy, messages = SummarizationCompaction(10, keep_last=4), chat(6)
    compacted(Run(ModelError("no")), strategy, messages)
    again = Run("recorded", decided=True)
    compacted(again, strategy, messages)
    assert len(again.requests) == 1
    # a summary that failed is tried again once some more has been said
    run, strategy = Run(ModelError("too long"), "short"), SummarizationCompaction(10, keep_last=4)
    messages = chat(6)
    asked = []
    for n in range(5):
        compacted(run, strategy, messages)
        asked.append(len(run.requests))
        messages = [*messages, user(f"more {n}")]
    assert asked == [1, 1, 1, 1, 2]


def test_how_the_model_is_asked() -> None:
    # a model and instructions of its own
    own, run = ScriptedModel(["x"], name="small"), Run(model=ScriptedModel(["y"], name="large"))
    strategy = SummarizationCompaction(10, keep_last=4, model=own, instructions="In French.")
    compacted(run, strategy, chat(6))
    compacted(run, SummarizationCompaction(10, keep_last=4), chat(6))
    assert (run.requests[0][0].text, [model.name for model in run.models]) == ("In French.", ["small", "large"])

    # a summary is not streamed
    async def heard() -> list[Any]:
        quiet = QuietModel(ScriptedModel(["a b c"], chunk="words"))
        meta: Any = type("Meta", (), {"run_id": "r"})
        return [event async for event in quiet.stream([user()], None, meta)]

    assert [type(event) for event in asyncio.run(heard())] == [ModelResponse]


class Small(ScriptedModel):
    def context_window(self) -> int:
        return 1_000


class OfBytes(Small):
    """A token for every two bytes."""

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        return sum(len(message.text.encode()) for message in messages) // 2


def test_what_is_told_leaves_room_in_every_language() -> None:
    for letter in ["a", "语"]:
        with case(letter):
            run, old = Run(model=OfBytes(["x"])), make_summary(letter * 5_000, 2)
            messages = [old, *(user(letter * 3_000) for _ in range(30)), user("the end")]
            compacted(run, SummarizationCompaction(10, keep_last=1), messages)
            told = run.requests[0][1].text
            assert 300 < len(told.encode()) // 2 <= 500
            assert letter * 20 in told.split("The conversation since then:")[1]
    # a model that counts nothing is told as many bytes as fit
    for letter in ["x", "语"]:
        with case(letter):
            run = Run(model=Small(["x"]))
            compacted(run, SummarizationCompaction(10, keep_last=4), [user(letter * 3_000) for _ in range(30)])
            assert len(run.requests[0][1].text.encode()) <= 4 * 500
