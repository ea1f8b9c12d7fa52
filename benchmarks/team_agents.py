"""The agents of the benchmarks of delegation: code that asks others, so that it is the runtime alone that is measured,
and an orchestrator whose model does.

Times are the worker's clock, in seconds. What an asker knew before it was suspended comes back to it in the answer.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.agents import add
from ravi_django import register
from ravi_django.agents import OrchestratorAgent, SubAgentConfig
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.agents.tools.delegate import handoff_name
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    ChatPayload,
    ContentBlock,
    GenerationOptions,
    Message,
    Role,
    RunContext,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from ravi_django.testing import ScriptedModel

LEAF = AgentId("test", "bench-leaf")
LIMITED = LLMFactory(
    "openai/limited", api_key="sk-limited", api_base=os.environ.get("BENCH_MODEL_URL"), timeout=60
).build()
BREADTH = 4  # children of a run in a tree


def _text(inbox: list[Message]) -> str:
    payload = inbox[0].payload
    assert isinstance(payload, ChatPayload)
    return payload.message.text


class Leaf:
    """Says when it was asked, when it began, and when it answered."""

    id = LEAF

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        begun = time.time()
        asked = float(_text(inbox))
        await ctx.reply(inbox[0], json.dumps([asked, begun, time.time()]))


class Asker:
    """Asks so many leaves at once as its message says. Its output: when it went on, and what each of them said."""

    id = AgentId("test", "bench-asker")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        outcomes = await asyncio.gather(*(self._ask(ctx) for _ in range(int(_text(inbox)))))
        return json.dumps([time.time(), [json.loads(said) for said in outcomes]])

    async def _ask(self, ctx: RunContext) -> str:
        outcome = await ctx.ask(LEAF, repr(time.time()))
        assert outcome.kind == "replied", outcome
        return _said(outcome.result)


class Node:
    """One of a tree of so many runs as its message says: a model call, a tool call, and then the rest of the tree by
    its children. Answers with how many runs there were, itself counted."""

    id = AgentId("test", "bench-node")
    model = ScriptedModel("Done.", usage=Usage(input_tokens=100, output_tokens=20), cost=0.001, record=False)
    tools = (add,)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        size = int(_text(inbox))
        await ctx.llm([ChatMessage.of(Role.USER, "Go on.")])
        await ctx.tool("add", a=1, b=size)
        counted = await asyncio.gather(*(self._ask(ctx, part) for part in shares(size - 1)))
        return str(1 + sum(counted))

    async def _ask(self, ctx: RunContext, size: int) -> int:
        outcome = await ctx.ask(self.id, str(size))
        assert outcome.kind == "replied", outcome
        return int(_said(outcome.result))


def shares(rest: int) -> list[int]:
    """So many runs, over as few children as there may be, as evenly as can be."""
    children = min(BREADTH, rest)
    return [rest // children + (place < rest % children) for place in range(children)]


def depth(size: int) -> int:
    """Of the deepest run of a tree of this size, the root's being 0."""
    return max((1 + depth(part) for part in shares(size - 1)), default=0)


def _said(result: Any) -> str:
    return str(result["text"] if isinstance(result, dict) else result)


def _delegate(messages: Sequence[ChatMessage], options: GenerationOptions) -> list[ContentBlock]:
    asked = next(message.text for message in messages if message.role is Role.USER)
    tool, task = handoff_name(LEAF), {"task": repr(time.time())}
    return [ToolUseBlock(tool_name=tool, arguments=task, call_id=f"c{n}") for n in range(int(asked))]


def _tell(messages: Sequence[ChatMessage], options: GenerationOptions) -> str:
    results = [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]
    return json.dumps([time.time(), [json.loads(result.text) for result in results]])


class StormLeaf:
    """One call of the limited model."""

    id = AgentId("test", "bench-storm-leaf")
    model = LIMITED

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        return (await ctx.llm([ChatMessage.of(Role.USER, "Go on.")])).text


class Storm:
    """Calls the limited model, asks ten children that do, and calls it again."""

    id = AgentId("test", "bench-storm")
    model = LIMITED

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        await ctx.llm([ChatMessage.of(Role.USER, "Begin.")])
        await asyncio.gather(*(ctx.ask(StormLeaf.id, "Go.") for _ in range(10)))
        return (await ctx.llm([ChatMessage.of(Role.USER, "End.")])).text


for agent in (Leaf(), Asker(), Node(), StormLeaf(), Storm()):
    register(agent)
register(
    OrchestratorAgent(
        "bench-orchestrator",
        model=ScriptedModel([_delegate, _tell], record=False),
        sub_agents=[SubAgentConfig(LEAF, "Answers at once.")],
        context=ContextConfig(DjangoHistoryProvider()),
    )
)
