"""The agents that are measured. The app's autodiscovery registers them in the worker processes too."""

import asyncio
import os
import time
from collections.abc import Sequence

from ravi_django import register, tool
from ravi_django.agents import CompactionPipeline, ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message, RunContext, ToolUseBlock, Usage
from ravi_django.testing import ScriptedModel

ANSWER = "Done: all the numbers have been added, one after the other."
MODEL_URL = os.environ.get("BENCH_MODEL_URL")
MODEL_DELAY_S = float(os.environ.get("BENCH_MODEL_DELAY_S", "2"))


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class LoopModel(ScriptedModel):
    def turn_of(self, messages: Sequence[ChatMessage]) -> int:
        """The messages are the instructions, the user's, and two a turn: that is quicker than to look at them."""
        return len(messages) // 2 - 1


def loop_agent(turns: int) -> ReActAgent:
    """`turns` model calls and one tool call less, from a model that answers at once. Shows the model everything."""
    script = [
        [ToolUseBlock(tool_name="add", arguments={"a": 1, "b": n}, call_id=f"call_{n}")] for n in range(turns - 1)
    ]
    usage = Usage(input_tokens=100, output_tokens=20)
    return ReActAgent(
        f"bench-loop-{turns}",
        model=LoopModel([*script, ANSWER], usage=usage, cost=0.001, record=False),
        tools=[add],
        context=ContextConfig(DjangoHistoryProvider(), CompactionPipeline()),
        system_instructions="You add numbers.",
        max_iterations=turns,
    )


def provider_agent(turns: int, url: str) -> ReActAgent:
    """The same loop with a provider's model."""
    return ReActAgent(
        f"bench-loop-{turns}",
        model=LLMFactory("openai/bench", api_key="sk-of-the-bench-server", api_base=url, timeout=60).build(),
        tools=[add],
        context=ContextConfig(DjangoHistoryProvider(), CompactionPipeline()),
        system_instructions="You add numbers.",
        max_iterations=turns,
    )


def answering_agent(key: str, model: object) -> ReActAgent:
    """One model call, streamed word by word."""
    context = ContextConfig(DjangoHistoryProvider())
    return ReActAgent(key, model=model, context=context, system_instructions="You answer briefly.")  # type: ignore[arg-type]


scripted = register(
    answering_agent("bench-scripted", ScriptedModel(ANSWER, delay=MODEL_DELAY_S, chunk="words", record=False))
)
if not os.environ.get("BENCH_SCRIPTED_ALONE"):  # a worker imports the model library in the background otherwise
    model = LLMFactory("openai/bench", api_key="sk-of-the-bench-server", api_base=MODEL_URL, timeout=60).build()
    register(answering_agent("bench-litellm", model))
instant = register(
    answering_agent("bench-instant", ScriptedModel(ANSWER, chunk="words", record=False)), access="authenticated"
)


class Waiter:
    """Makes as many calls as its message says, waits for the signal "go", and says when it went on."""

    id = AgentId("test", "bench-waiter")
    tools = (add,)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        payload = inbox[0].payload
        assert isinstance(payload, ChatPayload)
        for number in range(int(payload.message.text)):
            await ctx.tool("add", a=1, b=number)
        await ctx.sleep_until_signal("go")
        return str(time.time())


@tool(timeout=600)
async def hold() -> str:
    """Hold."""
    await asyncio.sleep(600)
    return "held"


class Holder:
    """Is in the middle of a call for as long as anybody lets it."""

    id = AgentId("test", "bench-holder")

    tools = (hold,)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        return (await ctx.tool("hold")).text


register(Waiter())
register(Holder())

from benchmarks import bill_agents, long_conversation, people_agents, social_agents, team_agents  # noqa: E402, F401 - team_agents uses `add`
