import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ravi_django.agents import (
    CompactionPipeline,
    ContextConfig,
    ExecutionTracker,
    InMemoryHistoryProvider,
    ReActAgent,
    SlidingWindowCompaction,
    create_assistant_agent,
)
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    Agent,
    AgentId,
    BudgetExhaustedError,
    CancellationError,
    ExecutionBudget,
    GenerationOptions,
    InvalidInputError,
    TextBlock,
    ToolResultBlock,
    TopicId,
)
from tests.support.cases import case
from tests.support.fake_context import FakeContext, call
from tests.support.react import AGENT, TOOLS, Model, add, agent, ask, remembering, results_in, run, stored


async def test_an_answer_ends_the_run_and_is_delivered() -> None:
    ctx = FakeContext(["42"])
    asked = ask("what is it?")
    output = await run(agent(system_instructions="Be brief."), ctx, asked)
    assert (output, ctx.replies) == ("42", [(asked, "42")])
    assert [(turn.role.value, turn.text) for turn in ctx.views[0]] == [("system", "Be brief."), ("user", "what is it?")]
    # tool results go back to the model
    ctx = FakeContext([["Let me see.", call("add", "c1", a=1, b=2)], "3"], TOOLS)
    output = await run(agent(), ctx)
    assert (output, results_in(ctx.views[1])) == ("3", [("c1", "3", False)])
    turn = ctx.views[1][1]
    assert (turn.text, [asked.call_id for asked in turn.tool_calls]) == ("Let me see.", ["c1"])
    # content that is no text goes back whole
    image = {"type": "image", "url": "https://example.org/a.png"}

    class Camera(FakeContext):
        async def tool(self, name: str, /, **arguments: Any) -> Any:
            from ravi_django.kernel import ToolExecutionResult

            return ToolExecutionResult.model_validate({"content": [image, {"type": "text", "text": "a cat"}]})

    ctx = Camera([call("look"), "a cat"], TOOLS)
    await run(agent(), ctx)
    (block,) = ctx.views[1][-1].content
    assert isinstance(block, ToolResultBlock)
    assert [inner.type for inner in block.content] == ["image", "text"]
    assert block.content[1] == TextBlock(text="a cat")


@pytest.mark.parametrize(("asked", "words"), [
    (call("add", a=1), "argument 'b' is missing"), (call("add", a=1, b=2, c=3), "unknown argument 'c'"),
    (call("add", **{INVALID_ARGUMENTS_KEY: "{a: 1"}), "not valid JSON: {a: 1"),
    (call("subtract", a=1), "unknown tool 'subtract'; there are add, echo"),
])  # fmt: skip
async def test_the_models_mistakes_go_back_to_it(asked: Any, words: str) -> None:
    ctx = FakeContext([asked, "sorry"], TOOLS)
    assert await run(agent(), ctx) == "sorry"
    ((_, text, is_error),) = results_in(ctx.views[1])
    assert words in text and is_error


async def test_the_cap_on_iterations_raises() -> None:
    ctx = FakeContext([call("add", a=1, b=1)], TOOLS)
    with pytest.raises(BudgetExhaustedError, match=r"react/helper reached the limit of 3 iterations"):
        await run(agent(max_iterations=3), ctx)
    assert (len(ctx.views), ctx.replies) == (3, [])
    # cancellation is seen before the next call
    ctx = FakeContext([lambda _: ctx.meta.cancellation.cancel("enough") or call("add", a=1, b=1)], TOOLS)
    with pytest.raises(CancellationError, match="enough"):
        await run(agent(), ctx)
    assert ctx.effects == [("turn1", "llm")]


async def test_which_options_the_model_gets() -> None:
    # initial tool choice is for the first call of a message alone
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "one", "two"], TOOLS)
    await run(agent(initial_tool_choice="add", base_options=GenerationOptions(temperature=0.5)), ctx, ask(), ask())
    assert [options and options.tool_choice for options in ctx.options] == ["add", None, None, "add"]
    assert {options and options.temperature for options in ctx.options} == {0.5}
    # options are built once and show all tools
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "done"], TOOLS)
    await run(agent(), ctx)
    assert len({id(options) for options in ctx.options}) == 1
    assert [spec["name"] for spec in ctx.options[0].tool_schemas] == ["add", "echo", "pay", "whoami"]
    # own base options are left alone
    base = GenerationOptions(max_tokens=5, tools=[add.spec])
    digests = base.digest, base.tools_digest
    ctx = FakeContext(["x"])
    await run(agent(base_options=base, initial_tool_choice="required"), ctx)
    options = ctx.options[0]
    assert [spec["name"] for spec in options.tool_schemas] == ["add"]
    assert options.digest != base.digest
    assert digests == (base.digest, base.tools_digest)


async def test_the_work_of_a_turn_does_not_grow_with_the_turns() -> None:
    # the model sees a view and history keeps everything
    history = InMemoryHistoryProvider()
    pipeline = CompactionPipeline(SlidingWindowCompaction(4))
    made = agent(context=ContextConfig(history, pipeline), system_instructions="Be brief.")
    ctx = FakeContext([call("add", f"c{number}", a=1, b=1) for number in range(6)] + ["done"], TOOLS)
    await run(made, ctx, ask("the task"))
    assert max(len(view) for view in ctx.views) <= 6
    assert [turn.text for turn in ctx.views[-1]][:2] == ["Be brief.", "the task"]
    assert await history.count(AGENT, "session-1") == 1 + 2 * 6 + 1

    class Counting(InMemoryHistoryProvider):
        turns = 0

        async def append_many(self, agent_id: Any, session_id: Any, messages: Any, **options: Any) -> None:
            self.turns += len(messages)
            await super().append_many(agent_id, session_id, messages, **options)

    history = Counting()
    made = agent(context=ContextConfig(history, SlidingWindowCompaction(10)), max_iterations=200)
    ctx = FakeContext([call("add", a=1, b=1)] * 199 + ["done"], TOOLS)
    await run(made, ctx)
    assert history.turns == 1 + 199 * 2 + 1
    assert {len(view) for view in ctx.views[20:]} <= {*range(9, 16)}


async def test_an_agent_is_an_agent() -> None:
    made = agent()
    assert isinstance(made, Agent)
    assert (made.id, agent(id=AgentId("bot", "x", "acme")).id) == (AGENT, agent(id="acme/bot/x").id)
    assert made.tools.names() == ["add", "echo", "pay", "whoami"]
    # the minimal agent needs a key and a model
    ctx = FakeContext(["hi"])
    assert await ReActAgent("helper", model=Model()).run(ctx, [ask()]) == "hi"
    assert ctx.options[0].tools == []
    # factory wires the everyday agent
    history = InMemoryHistoryProvider()
    made = create_assistant_agent(
        model_client=Model(), tools=[add], system_instructions="Be brief.", memory=history, max_iterations=4
    )
    assert made.id == AgentId("react", "assistant")
    assert made.context.history is history
    assert (made.context.pipeline.reach, made.max_iterations, made.tools.names()) == (158, 4, ["add"])

    # spec is json and changes with the agent
    def spec(**options: Any) -> str:
        return json.dumps(agent(**options).spec(), sort_keys=True)

    assert (json.loads(spec())["model"], json.loads(spec())["tools"][2]["risk"]) == ("fake-model", "high")
    assert spec() == spec()
    variants = [
        {"system_instructions": "x"}, {"max_iterations": 3}, {"tools": [add]},
        {"budget": ExecutionBudget(max_turns=1)}, {"base_options": GenerationOptions(temperature=1)},
        {"initial_tool_choice": "add"}, {"output_topic": TopicId("news")}, {"approval_required_risk": "critical"},
        {"context": ContextConfig(retention="none")}, {"name": "Other"},
    ]  # fmt: skip
    assert len({spec(), *(spec(**variant) for variant in variants)}) == 1 + len(variants)


@pytest.mark.parametrize(("options", "words"), [
    ({"model": None}, "a ChatModel, not None"), ({"model": " "}, "must be a model's name"),
    ({"model": dict}, "must be a model's name"), ({"base_options": "low"}, "or a dict of them, not 'low'"),
    ({"max_iterations": 0}, "max_iterations is a whole number from 1"),
    ({"max_iterations": "3"}, "max_iterations is a whole number from 1"),
    ({"max_parallel_tools": 0}, "max_parallel_tools is a whole number from 1"),
    ({"initial_tool_choice": "search"}, "is not a tool of react/helper; its tools: add, echo, pay, whoami"),
    ({"initial_tool_choice": "required", "tools": []}, "its tools: none"), ({"approval_required_risk": "huge"}, "huge"),
    ({"tools": "calculator"}, "tools must be a list"),
])  # fmt: skip
async def test_wrong_options_are_refused_with_the_mend(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidInputError)) as caught:
        agent(**options)
    assert words in str(caught.value)


async def test_later_messages_of_an_inbox_have_places_of_their_own_and_see_the_earlier_ones() -> None:
    made, history = remembering()
    ctx = FakeContext(["one", call("add", a=1, b=1), "two"], TOOLS)
    output = await run(made, ctx, ask("first"), ask("second"))
    assert (output, [reply for _, reply in ctx.replies]) == ("two", ["one", "two"])
    assert [place for place, _ in ctx.effects] == ["turn1", "msg2.turn1", "msg2.turn1.call0", "msg2.turn2"]
    assert [turn.text for turn in ctx.views[1]] == ["first", "one", "second"]
    assert await stored(history) == [
        "user:first", "assistant:one", "user:second", "assistant:", "tool:2", "assistant:two",
    ]  # fmt: skip


async def test_a_conversation_is_the_contexts_session_or_the_messages() -> None:
    # without a session of the context the messages conversation counts
    made, history = remembering()
    await run(made, FakeContext(["a", "b"], session_id=""), ask("1", correlation_id="x"), ask("2", correlation_id="y"))
    assert await stored(history, "x") == ["user:1", "assistant:a"]
    assert await stored(history, "y") == ["user:2", "assistant:b"]
    # the contexts session goes before the messages
    made, history = remembering()
    await run(made, FakeContext(), ask(correlation_id="x"))
    assert await history.count(AGENT, "x") == 0
    assert await history.count(AGENT, "session-1") == 2
    # tools know whose task they are
    ctx = FakeContext([call("whoami"), "done"], TOOLS)
    await run(agent(name="Helper"), ctx, ask(metadata={"parent_agent_id": "orchestrator/team"}))
    assert results_in(ctx.views[1])[0][1] == "react/helper Helper session-1 orchestrator/team"


async def test_many_runs_of_one_agent_do_not_mix() -> None:
    made, history = remembering(system_instructions="Be brief.")

    async def one(number: int) -> FakeContext:
        ctx = FakeContext(
            [call("echo", label=str(number)), f"answer {number}"], TOOLS, run_id=f"r{number}",
            session_id=f"s{number}", on_tool=lambda _: asyncio.sleep(0)
        )  # fmt: skip
        assert await run(made, ctx, ask(f"question {number}")) == f"answer {number}"
        return ctx

    contexts = await asyncio.gather(*(one(number) for number in range(50)))

    for number, ctx in enumerate(contexts):
        assert [turn.text for turn in ctx.views[1]] == ["Be brief.", f"question {number}", "", str(number)]
        assert await history.count(AGENT, f"s{number}") == 4


async def test_a_run_stops_at_its_budget() -> None:
    for budget, calls, words in [
        (ExecutionBudget(max_turns=2), 2, "model calls"), (ExecutionBudget(max_tokens=30), 2, "tokens"),
        (ExecutionBudget(max_tokens=20), 2, "tokens"), (ExecutionBudget(max_cost_usd=0.01), 1, "US dollars"),
    ]:  # fmt: skip
        with case(budget, calls, words):
            ctx = FakeContext([call("add", a=1, b=1)], TOOLS)  # each call: 15 tokens, 1 cent
            with pytest.raises(BudgetExhaustedError, match=words):
                await run(agent(budget=budget), ctx)
            assert len(ctx.views) == calls

    async def slow(_: str) -> None:
        ctx.clock += timedelta(seconds=6)

    ctx = FakeContext([call("add", a=1, b=1)], TOOLS, on_tool=slow)
    with pytest.raises(BudgetExhaustedError, match="seconds"):
        await run(agent(budget=ExecutionBudget(deadline_s=10)), ctx)
    assert len(ctx.views) == 2
    # every run has a budget of its own
    made = agent(budget=ExecutionTracker(ExecutionBudget(max_turns=1)))
    outputs = await asyncio.gather(*(run(made, FakeContext([str(number)])) for number in range(5)))
    assert outputs == ["0", "1", "2", "3", "4"]


START = datetime(2025, 1, 1, tzinfo=UTC)


def test_what_a_budget_counts() -> None:
    # a budget may be used up but nothing more begun
    for budget, used, words in [
        (ExecutionBudget(max_tokens=100), {"tokens": 50}, "100 of 100 tokens"),
        (ExecutionBudget(max_turns=2), {"turns": 1}, "2 of 2 model calls"),
        (ExecutionBudget(max_cost_usd=0.5), {"cost": 0.25}, "0.5 of 0.5 US dollars"),
    ]:
        with case(budget, used, words):
            tracker = ExecutionTracker(budget)
            tracker.consume(**used)
            tracker.check()
            tracker.consume(**used)
            with pytest.raises(BudgetExhaustedError, match=words):
                tracker.check()
    # using more than the budget raises and is counted
    tracker = ExecutionTracker(ExecutionBudget(max_tokens=100))
    with pytest.raises(BudgetExhaustedError, match="120 of 100 tokens; raise max_tokens"):
        tracker.consume(tokens=120, turns=1)
    assert (tracker.tokens, tracker.turns) == (120, 1)
    # an unlimited budget never raises
    tracker = ExecutionTracker(ExecutionBudget())
    tracker.consume(tokens=10**12, turns=10**6, cost=1e9)
    tracker.check(START)
    # unknown price counts nothing
    tracker = ExecutionTracker(ExecutionBudget(max_cost_usd=0.1))
    tracker.consume(cost=None)
    assert tracker.cost == 0.0
    # deadline counts from the start
    tracker = ExecutionTracker(ExecutionBudget(deadline_s=10)).fresh(START)
    tracker.check(START + timedelta(seconds=9.9))
    with pytest.raises(BudgetExhaustedError, match=r"10.0 of 10.0 seconds; raise deadline_s"):
        tracker.check(START + timedelta(seconds=10))
    # fresh has used nothing and leaves the other alone
    tracker = ExecutionTracker(ExecutionBudget(max_turns=1))
    tracker.consume(turns=1)
    fresh = tracker.fresh()
    fresh.check()
    assert (fresh.turns, tracker.turns) == (0, 1)
    assert fresh.budget is tracker.budget
