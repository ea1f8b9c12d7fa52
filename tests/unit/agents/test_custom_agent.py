"""An agent written by hand, in the way of the seeds' `_react_loop`, on the shared helpers."""

from typing import Any

import pytest

from ravi_django.agents import CompactionPipeline, ContextConfig, InMemoryHistoryProvider, SlidingWindowCompaction, tool
from ravi_django.kernel import (
    Agent,
    AgentId,
    BudgetExhaustedError,
    ChatMessage,
    ChatPayload,
    GenerationOptions,
    Message,
    Role,
    RunContext,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.support.fake_context import FakeContext, call
from tests.support.world import final_text, load_history, loop_deliver, message_to_chat, persist_turns


@tool
def add(a: int, b: int) -> int:
    return a + b


class HandWritten:
    def __init__(self, context: ContextConfig, max_iterations: int = 5) -> None:
        self.id = AgentId("custom", "hand")
        self._context = context
        self._max_iterations = max_iterations
        self._options = GenerationOptions(tools=[add])

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        for msg in inbox:
            ctx.check()
            await self._handle_message(ctx, msg)

    async def _handle_message(self, ctx: RunContext, msg: Message) -> None:
        session_id = msg.correlation_id or ctx.run_id
        history = await load_history(self._context, self.id, session_id)
        messages = [*history, message_to_chat(msg)]
        for _ in range(self._max_iterations):
            ctx.check()
            resp = await ctx.llm(await self._context.pipeline.compact(messages), options=self._options)
            messages.append(ChatMessage(role=Role.ASSISTANT, content=resp.content))
            tool_calls = [block for block in resp.content if isinstance(block, ToolUseBlock)]
            if not tool_calls:
                break
            results: list[Any] = []
            for tc in tool_calls:
                ctx.check()
                inv_result = await ctx.tool(tc.tool_name, **tc.arguments)
                results.append(
                    ToolResultBlock(
                        call_id=tc.call_id,
                        content=[TextBlock(text=inv_result.text or "")],
                        is_error=inv_result.status != "ok",
                    )
                )
            messages.append(ChatMessage(role=Role.TOOL, content=results))
        else:
            raise BudgetExhaustedError(f"Agent reached max iterations limit ({self._max_iterations})")
        await persist_turns(self._context, self.id, session_id, ctx.run_id, messages[len(history) :])
        await loop_deliver(ctx, msg, {"text": final_text(messages)}, sender=self.id)


def ask(text: str) -> Message:
    return Message(
        target=AgentId("custom", "hand"),
        payload=ChatPayload(message=ChatMessage.of("user", text)),
        correlation_id="conversation",
    )


@pytest.fixture
def made() -> HandWritten:
    return HandWritten(ContextConfig(InMemoryHistoryProvider(), CompactionPipeline(SlidingWindowCompaction(50))))


@pytest.mark.asyncio
async def test_it_calls_tools_answers_and_remembers(made: HandWritten) -> None:
    ctx = FakeContext([call("add", "c1", a=1, b=2), "three"], [add], run_id="r1")
    await made.run(ctx, [ask("1 + 2?")])  # type: ignore[arg-type]
    second = FakeContext(["you are welcome"], [add], run_id="r2")

    await made.run(second, [ask("thanks")])  # type: ignore[arg-type]

    assert isinstance(made, Agent)
    assert [result for _, result in ctx.replies] == ["three"]
    assert [turn.text for turn in second.views[0]] == ["1 + 2?", "", "3", "three", "thanks"]


@pytest.mark.asyncio
async def test_its_cap_raises(made: HandWritten) -> None:
    with pytest.raises(BudgetExhaustedError, match="max iterations"):
        await made.run(FakeContext([call("add", a=1, b=2)], [add]), [ask("loop")])  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_storing_again_in_a_replay_stores_nothing_twice(made: HandWritten) -> None:
    for _ in range(2):
        await made.run(FakeContext(["hi"], run_id="r1"), [ask("hello")])  # type: ignore[arg-type]

    history = made._context.history
    assert history is not None
    assert await history.count(made.id, "conversation") == 2
