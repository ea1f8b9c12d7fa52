import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ravi_django.agents import ContextConfig, InMemoryHistoryProvider
from ravi_django.agents.context import AgentContext
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    ToolResultCompaction,
)
from ravi_django.agents.memory.transcript import HEADING, keeps_of, make_summary, summary_text
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentId,
    BudgetExhaustedError,
    ChatMessage,
    ExecutionBudget,
    InvalidInputError,
    LeaseLostError,
    ModelResponse,
    TextBlock,
)
from tests.support.conversations import assistant, conversations, system, tool_row, user
from tests.support.fake_context import FakeContext, call
from tests.support.react import AGENT, TOOLS, agent, ask, remembering, results_in, run, stored
from tests.support.world import task_ctx


class Watching(FakeContext):
    """Asks for the prompt window whenever the model is called."""

    made: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.windows: list[list[ChatMessage]] = []

    async def llm(self, messages: Sequence[ChatMessage], **options: Any) -> ModelResponse:
        self.windows.append(await self.made.context.get_prompt_window(self.session_id))
        return await super().llm(messages, **options)


async def watched(made: Any, *script: Any, run_id: str = "r1") -> Watching:
    ctx = Watching(list(script), TOOLS, run_id=run_id)
    ctx.made = made
    await run(made, ctx)
    return ctx


PIPELINES = [
    CompactionPipeline(),
    CompactionPipeline(SlidingWindowCompaction(4)),
    CompactionPipeline(ToolResultCompaction(1), SelectiveToolCallCompaction(1), SlidingWindowCompaction(6)),
]


@pytest.mark.parametrize("pipeline", PIPELINES)
async def test_the_window_is_what_the_loop_sends(pipeline: Any) -> None:
    made = agent(context=ContextConfig(InMemoryHistoryProvider(), pipeline), system_instructions="Be brief.")
    steps = [call("echo", f"c{n}", label=f"{n}" * 5) for n in range(6)]
    first = await watched(made, *steps, "done")
    second = await watched(made, *steps, "done", run_id="r2")
    assert (first.windows, second.windows, len(second.views)) == (first.views, second.views, 7)


async def test_the_window_outside_of_a_run() -> None:
    # outside of a run it is what the next run begins with
    made = agent(context=ContextConfig(InMemoryHistoryProvider()), system_instructions="Be brief.")
    await watched(made, "hi")
    window = await made.context.get_prompt_window("session-1")
    next_run = await watched(made, "again", run_id="r2")
    assert [turn.text for turn in window] == ["Be brief.", "hello", "hi"]
    assert next_run.views[0] == [*window, ask().payload.message]
    # an ended run leaves no live conversation behind
    made = agent(context=ContextConfig(InMemoryHistoryProvider(), retention="none"))
    await watched(made, "hi")
    assert await made.context.get_prompt_window("session-1") == []
    # an unbound one has to be told whose window
    config = ContextConfig(InMemoryHistoryProvider())
    await config.history.append(AGENT, "s", user("hi"))
    with pytest.raises(InvalidInputError, match=r"agent\.context\.get_prompt_window") as error:
        await config.get_prompt_window("s")
    assert error.value.field == "agent_id"
    assert await config.get_prompt_window("s", agent_id=AGENT) == [user("hi")]
    assert await config.bind("react/other").get_prompt_window("s", agent_id=str(AGENT)) == [user("hi")]
    assert await config.bind(AgentId("react", "other")).get_prompt_window("s") == []
    # asking for the window makes no summary
    made = summing(history=InMemoryHistoryProvider())
    await made.context.history.append_many(AGENT, "s", [user(), *tool_row(20)])
    ctx = Summing()
    task_ctx.set(ctx)
    window = await made.context.get_prompt_window("s")
    assert (ctx.summaries, len(window)) == ([], 5)
    # a bound context is what the kernel asks for
    history, pipeline = InMemoryHistoryProvider(), CompactionPipeline()
    config = ContextConfig(history, pipeline, "run")
    context = agent(context=config).context
    assert isinstance(context, AgentContext) and isinstance(context, AgentContextProtocol)
    assert context.agent_id == AGENT
    assert (context.history, context.pipeline, context.retention.value) == (history, pipeline, "run")
    assert context.stores is history and agent(context=config).context is not context


@given(conversations(), st.integers(1, 12), st.integers(0, 3))
def test_what_is_read_of_a_history_gives_the_same_window_as_all_of_it(
    messages: list[ChatMessage], most: int, keep: int
) -> None:
    """However little is read: more turns follow in the run."""
    turns = [message for message in messages if message.role.value != "system"]
    pipelines = [
        SlidingWindowCompaction(most),
        CompactionPipeline(ToolResultCompaction(2), SlidingWindowCompaction(most)),
    ]

    async def window(pipeline: Any) -> tuple[list[ChatMessage], list[ChatMessage]]:
        config = ContextConfig(InMemoryHistoryProvider(), pipeline)
        await config.history.append_many(AGENT, "s", turns)
        context = config.bind(AGENT, instructions=[system()])
        thread = await context.open("s")
        for number in range(keep):
            await context.add(thread, assistant(f"more {number}"))
        closed = [system(), *await config.history.get(AGENT, "s")]
        return await context.view(thread), await pipeline.compact(closed)

    for pipeline in pipelines:
        shown, expected = asyncio.run(window(pipeline))
        assert shown == expected


class Summing(FakeContext):
    """Says "summary N" where it is asked for one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.summaries: list[list[ChatMessage]] = []
        self.shown: list[list[ChatMessage]] = []

    async def llm(self, messages: Sequence[ChatMessage], **options: Any) -> ModelResponse:
        if messages[0].text.startswith("You keep the memory"):
            self.summaries.append(list(messages))
            return await FakeContext([f"summary {len(self.summaries)}"]).llm(messages)
        self.shown.append(list(messages))
        return await super().llm(messages, **options)


def summing(*strategies: Any, history: Any = None, **options: Any) -> Any:
    pipeline = CompactionPipeline(*strategies, SummarizationCompaction(8, keep_last=4))
    return agent(context=ContextConfig(history, pipeline), max_iterations=50, **options)


async def summed(made: Any, steps: int, run_id: str = "r1") -> Summing:
    ctx = Summing([*(call("echo", f"c{n}", label=f"step-{n}") for n in range(steps)), "done"], TOOLS, run_id=run_id)
    task_ctx.set(ctx)
    await run(made, ctx)
    return ctx


def summaries_in(view: Sequence[ChatMessage]) -> list[str]:
    return [summary_text(message) for message in view if message.text.startswith(HEADING)]


async def test_a_summary_is_kept_and_updated_and_the_users_words_stay() -> None:
    history = InMemoryHistoryProvider()
    made = summing(history=history, system_instructions="Be brief.")
    ctx = await summed(made, 10)
    assert len(ctx.summaries) == 4  # once there are 9 turns, then whenever two calls have added 4
    assert summaries_in(ctx.shown[-1]) == ["summary 4"]
    assert [message.role.value for message in ctx.shown[-1]][:3] == ["system", "user", "user"]  # no instructions
    assert "summary 3" in ctx.summaries[-1][1].text
    assert all(len(view) <= 1 + 1 + 1 + 8 for view in ctx.shown)
    assert all("hello" in [message.text for message in view] for view in ctx.shown)
    assert await history.count(AGENT, "session-1") == 1 + 2 * 10 + 1
    # without a history the run still has one summary
    ctx = await summed(summing(), 10)
    assert summaries_in(ctx.shown[-1]) == [f"summary {len(ctx.summaries)}"]

    # a provider without window is given no summary
    class Plain(InMemoryHistoryProvider):
        window = None

    history = Plain()
    ctx = await summed(summing(history=history), 10)
    assert len(ctx.summaries) == 4
    rows = history._rows(AGENT, "session-1")
    assert [keeps_of(row.message) for row in rows] == [None] * 22


@pytest.mark.parametrize("before", [[], [ToolResultCompaction(1)], [SelectiveToolCallCompaction(4)]])
async def test_the_next_run_reads_what_this_one_has_not_summarized(before: list[Any]) -> None:
    """Also when strategies before it have left turns out or cut them: it says how many turns of the whole it leaves."""
    history = InMemoryHistoryProvider()
    made = summing(*before, history=history)
    ctx = await summed(made, 9)

    window = await history.window(AGENT, "session-1", limit=100)

    everything = await history.get(AGENT, "session-1")
    summary, words, *left = window
    told = "".join(request[1].text for request in ctx.summaries)
    assert summaries_in(window) == [summary_text(summary)] == [f"summary {len(ctx.summaries)}"]
    assert words.text == "hello"
    assert left == everything[-len(left) :]  # nothing is missing in between
    assert len(left) < 10
    for turn in everything[1 : -len(left)]:
        assert all(call.arguments["label"] in told for call in turn.tool_calls)


async def test_a_summary_counts_in_the_budget() -> None:
    made = summing(budget=ExecutionBudget(max_tokens=1_000))
    ctx = Summing([*(call("echo", f"c{n}", label="x") for n in range(10)), "done"], TOOLS)
    task_ctx.set(ctx)
    trackers: list[Any] = []
    made._fresh_tracker, fresh = lambda ctx: trackers.append(fresh(ctx)) or trackers[-1], made._fresh_tracker
    await run(made, ctx)
    assert trackers[0].tokens == 15 * (11 + 4)  # 11 calls and 4 summaries, of 15 tokens each
    assert trackers[0].turns == 11


async def test_which_summaries_are_new_ones() -> None:
    # a summary of ones own is not taken for a new one each time
    class Own:
        async def compact(self, messages: Any) -> list[ChatMessage]:
            return [make_summary("the same", 0), *messages[-1:]]

    history = InMemoryHistoryProvider()
    made = agent(context=ContextConfig(history, Own()), max_iterations=20)
    await run(made, FakeContext([*(call("echo", f"c{n}", label="x") for n in range(5)), "done"], TOOLS))
    rows = history._rows(AGENT, "session-1")
    assert [keeps_of(row.message) for row in rows].count(0) == 1

    # a summary in the same words as the last one is a new one
    class Same(Summing):
        async def llm(self, messages: Sequence[ChatMessage], **options: Any) -> ModelResponse:
            response = await super().llm(messages, **options)
            same = ModelResponse.of([TextBlock(text="the same")])
            return same if messages[0].text.startswith("You keep the memory") else response

    ctx = Same([*(call("echo", f"c{n}", label="x") for n in range(12)), "done"], TOOLS)
    task_ctx.set(ctx)
    await run(summing(), ctx)
    assert len(ctx.summaries) == 5
    assert max(map(len, ctx.shown)) <= 9


async def test_turns_that_an_earlier_strategy_left_out_are_not_taken_for_summarized() -> None:
    pipeline = CompactionPipeline(SelectiveToolCallCompaction(1), SummarizationCompaction(8, keep_last=4))
    context = ContextConfig(InMemoryHistoryProvider(), pipeline).bind(AGENT)
    chat = [turn for n in range(6) for turn in (user(f"{n}"), assistant(f"{n}"))]
    turns = [*chat, user("task"), *tool_row(3)]
    thread = await context.open("s")
    for turn in turns:
        await context.add(thread, turn)
    task_ctx.set(Summing())

    view = await context.view(thread)
    assert view[1:] == [user("5"), assistant("5"), user("task"), *turns[-2:]]  # the others left out for now
    assert keeps_of(thread.messages[-1]) == 8  # but not for good
    assert (await context.history.window(AGENT, "s", limit=99))[1:] == [user("5"), *turns[-8:]]


async def test_turns_are_stored_as_they_emerge() -> None:
    made, history = remembering()
    counts: list[int] = []

    async def count(_: Any) -> None:
        counts.append(await history.count(AGENT, "session-1"))

    ctx = FakeContext([call("echo", label="x"), "done"], TOOLS, on_tool=count)
    await run(made, ctx)
    assert counts == [2]  # the user's and the assistant's, while the tool runs
    assert await history.count(AGENT, "session-1") == 4
    # turns are kept when the cap is reached
    made, history = remembering(max_iterations=2)
    with pytest.raises(BudgetExhaustedError):
        await run(made, FakeContext([call("add", a=1, b=1)], TOOLS), ask("task"))
    assert await stored(history) == ["user:task", "assistant:", "tool:2", "assistant:", "tool:2"]
    # turns are kept when the model fails
    made, history = remembering()
    with pytest.raises(ConnectionError):
        await run(made, FakeContext([call("add", a=1, b=1), ConnectionError("gone")], TOOLS), ask("task"))
    assert await stored(history) == ["user:task", "assistant:", "tool:2"]
    # a second run sees the first and another session does not
    made, _ = remembering()
    await run(made, FakeContext(["hi"], run_id="r1"), ask("I am Ada"))
    same, other = FakeContext(run_id="r2"), FakeContext(run_id="r3", session_id="session-2")
    await run(made, same, ask("who am I?"))
    await run(made, other, ask("who am I?"))
    assert [turn.text for turn in same.views[0]] == ["I am Ada", "hi", "who am I?"]
    assert [turn.text for turn in other.views[0]] == ["who am I?"]
    # a replay shows the same and stores nothing twice
    made, history = remembering()
    await run(made, FakeContext(["hi"], run_id="r0"), ask("before"))
    first = FakeContext([call("add", a=1, b=1), ConnectionError("the worker died")], TOOLS, run_id="r1")
    with pytest.raises(ConnectionError):
        await run(made, first, ask("task"))
    again = FakeContext([call("add", a=1, b=1), "2"], TOOLS, run_id="r1")
    await run(made, again, ask("task"))
    assert again.views == first.views
    assert await stored(history) == ["user:before", "assistant:hi", "user:task", "assistant:", "tool:2", "assistant:2"]
    # the next run sees an interrupted call closed
    made, _ = remembering()

    async def die(_: str) -> None:
        raise LeaseLostError("r1", 1)

    with pytest.raises(LeaseLostError):
        await run(made, FakeContext([call("add", "c1", a=1, b=1)], TOOLS, run_id="r1", on_tool=die), ask("task"))
    ctx = FakeContext(run_id="r2")
    await run(made, ctx, ask("and?"))
    ((call_id, text, is_error),) = results_in(ctx.views[0])
    assert (call_id, is_error) == ("c1", True)
    assert text.startswith("interrupted")


@pytest.mark.parametrize(
    ("ending", "left"), [("done", ["kept"]), (ValueError("x"), ["kept"]), (LeaseLostError("r", 1), ["kept", "hello"])]
)
async def test_turns_of_a_run_alone_go_when_it_ends_but_not_when_it_moves_on(ending: Any, left: list[str]) -> None:
    history = InMemoryHistoryProvider()
    await history.append(AGENT, "session-1", ChatMessage.of("user", "kept"), run_id="r0")
    made = agent(context=ContextConfig(history, retention="run"))
    with contextlib.suppress(ValueError, LeaseLostError):
        await run(made, FakeContext([ending], TOOLS, run_id="r1"))
    assert [turn.text for turn in await history.get(AGENT, "session-1")] == left
