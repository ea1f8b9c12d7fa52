from typing import Any

import pytest

from ravi_django.agents import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
)
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    BudgetExhaustedError,
    CancellationError,
    GenerationOptions,
    TextBlock,
    ToolResultBlock,
)
from tests.support.fake_context import FakeContext, call
from tests.support.react import AGENT, TOOLS, add, agent, ask, results_in, run

pytestmark = pytest.mark.asyncio


async def test_an_answer_ends_the_run_and_is_delivered() -> None:
    ctx = FakeContext(["42"])
    asked = ask("what is it?")

    output = await run(agent(system_instructions="Be brief."), ctx, asked)

    assert output == "42"
    assert ctx.replies == [(asked, "42")]
    assert [(turn.role.value, turn.text) for turn in ctx.views[0]] == [("system", "Be brief."), ("user", "what is it?")]


async def test_tool_results_go_back_to_the_model() -> None:
    ctx = FakeContext([["Let me see.", call("add", "c1", a=1, b=2)], "3"], TOOLS)

    output = await run(agent(), ctx)

    assert output == "3"
    assert results_in(ctx.views[1]) == [("c1", "3", False)]
    turn = ctx.views[1][1]
    assert (turn.text, [asked.call_id for asked in turn.tool_calls]) == ("Let me see.", ["c1"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (call("add", a=1), "argument 'b' is missing"),
        (call("add", a=1, b=2, c=3), "unknown argument 'c'"),
        (call("add", **{INVALID_ARGUMENTS_KEY: "{a: 1"}), "not valid JSON: {a: 1"),
        (call("subtract", a=1), "unknown tool 'subtract'; there are add, echo"),
    ],
)
async def test_the_models_mistakes_go_back_to_it(asked: Any, words: str) -> None:
    ctx = FakeContext([asked, "sorry"], TOOLS)

    assert await run(agent(), ctx) == "sorry"
    ((_, text, is_error),) = results_in(ctx.views[1])
    assert words in text
    assert is_error


async def test_the_cap_on_iterations_raises() -> None:
    ctx = FakeContext([call("add", a=1, b=1)], TOOLS)

    with pytest.raises(BudgetExhaustedError, match=r"react/helper reached max iterations limit \(3\)"):
        await run(agent(max_iterations=3), ctx)

    assert len(ctx.views) == 3
    assert ctx.replies == []


async def test_initial_tool_choice_is_for_the_first_call_of_a_message_alone() -> None:
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "one", "two"], TOOLS)

    await run(agent(initial_tool_choice="add", base_options=GenerationOptions(temperature=0.5)), ctx, ask(), ask())

    assert [options and options.tool_choice for options in ctx.options] == ["add", None, None, "add"]
    assert {options and options.temperature for options in ctx.options} == {0.5}


async def test_options_are_built_once_and_show_all_tools() -> None:
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(), ctx)

    assert len({id(options) for options in ctx.options}) == 1
    assert ctx.options[0] is not None
    assert [spec["name"] for spec in ctx.options[0].tool_schemas] == ["add", "echo", "pay", "whoami"]


async def test_own_base_options_are_left_alone() -> None:
    base = GenerationOptions(max_tokens=5, tools=[add.spec])
    digests = base.digest, base.tools_digest
    ctx = FakeContext(["x"])

    await run(agent(base_options=base, initial_tool_choice="required"), ctx)

    options = ctx.options[0]
    assert options is not None
    assert [spec["name"] for spec in options.tool_schemas] == ["add"]
    assert options.digest != base.digest
    assert digests == (base.digest, base.tools_digest)


async def test_the_model_sees_a_view_and_history_keeps_everything() -> None:
    history = InMemoryHistoryProvider()
    pipeline = CompactionPipeline(SlidingWindowCompaction(4))
    made = agent(context=ContextConfig(history, pipeline), system_instructions="Be brief.")
    ctx = FakeContext([call("add", f"c{number}", a=1, b=1) for number in range(6)] + ["done"], TOOLS)

    await run(made, ctx, ask("the task"))

    assert max(len(view) for view in ctx.views) == 4
    assert [turn.text for turn in ctx.views[-1]][:2] == ["Be brief.", "the task"]
    assert await history.count(AGENT, "session-1") == 1 + 2 * 6 + 1


async def test_cancellation_is_seen_before_the_next_call() -> None:
    ctx = FakeContext([lambda _: ctx.meta.cancellation.cancel("enough") or call("add", a=1, b=1)], TOOLS)

    with pytest.raises(CancellationError, match="enough"):
        await run(agent(), ctx)

    assert ctx.effects == [("turn1", "llm")]


async def test_content_that_is_no_text_goes_back_whole() -> None:
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
