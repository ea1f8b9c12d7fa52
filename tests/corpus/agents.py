"""The agents of the frozen journals. Never change what is here: the journals were written by exactly this code.

New scenarios are added beside the old ones, with a number of their own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import AgentId, ModelError, ToolUseBlock, Usage
from ravi_django.testing import ScriptedModel
from tests.support.runs import CodeAgent
from tests.support.world import DjangoHistoryProvider

CHILD = AgentId("test", "corpus_child")
MODEL = {"usage": Usage(input_tokens=12, output_tokens=3), "cost": 0.001}


@tool
async def fetch(name: str) -> str:
    """Fetch."""
    return f"<{name}>"


@tool
def big(size: int) -> str:
    """Give much."""
    return "x" * size


@tool(risk="high", effect="at_most_once")
def send(to: str) -> str:
    """Send."""
    if to == "nobody":
        raise OSError("connection reset")
    return f"sent to {to}"


TOOLS = [fetch, big, send]


def call(number: int, tool_name: str, /, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name=tool_name, arguments=arguments, call_id=f"c{number}")


async def waits_and_branches(ctx, inbox):
    await ctx.log("began", {"texts": [message.payload.message.text for message in inbox]})
    begun = ctx.now()
    found = await asyncio.gather(*(ctx.tool("fetch", name=name) for name in "abc"))

    async def branch(name):
        first = await ctx.tool("fetch", name=name)
        return (await ctx.tool("fetch", name=first.text)).text

    nested = await asyncio.gather(branch("d"), asyncio.gather(branch("e"), branch("f")))
    await ctx.log_once("half", str(ctx.uuid()))
    got = await ctx.sleep_until_signal("go", until=timedelta(days=365_0))
    await ctx.sleep_until(begun - timedelta(days=1))
    return {"found": [one.text for one in found], "nested": nested, "got": got, "random": ctx.random()}


async def asks_and_joins(ctx, inbox):
    answers = await asyncio.gather(ctx.ask(CHILD, "one"), ctx.ask(CHILD, "two", timeout=timedelta(days=3650)))
    handle = await ctx.spawn(CHILD, "three")
    end = await ctx.join(handle)
    await ctx.sleep_until_signal("go")
    return [answer.result for answer in answers] + [end.kind]


async def answers(ctx, inbox):
    for message in inbox:
        await ctx.reply(message, {"echo": (await ctx.tool("fetch", name=message.payload.message.text)).text})


async def effects_of_all_kinds(ctx, inbox):
    sent = await ctx.tool("send", to="ACME")
    much = await ctx.tool("big", size=100_000)
    bad = await ctx.tool("fetch", wrong="argument")
    none = await ctx.tool("nothing")
    await ctx.sleep_until_signal("go")
    return [sent.text, len(much.text), bad.status, none.status, ctx.patched("later")]


async def an_uncertain_effect(ctx, inbox):
    return (await ctx.tool("send", to="nobody")).text


async def goes_round(ctx, inbox):
    number = ctx.state or 0
    await ctx.tool("fetch", name=str(number))
    if number < 2:
        await ctx.continue_as_new(number + 1)
    await ctx.sleep_until_signal("go")
    return number


async def a_model_that_refuses(ctx, inbox):
    from ravi_django.kernel import ChatMessage

    try:
        await ctx.llm([ChatMessage.of("user", "hi")])
    except ModelError as error:
        words = f"{error.type}: {error}"
    await ctx.sleep_until_signal("go")
    return words


def _react() -> ReActAgent:
    script = [[call(1, "fetch", name="a"), call(2, "fetch", name="b")], call(3, "big", size=70_000), "It is done."]
    return ReActAgent(
        "corpus",
        id="test/corpus_react",
        model=ScriptedModel(script, **MODEL),
        tools=TOOLS,
        context=ContextConfig(DjangoHistoryProvider()),
        system_instructions="Be brief.",
    )


def agents() -> dict[str, Any]:
    """One agent a scenario, by its name."""
    functions = {
        "waits": waits_and_branches,
        "asks": asks_and_joins,
        "child": answers,
        "effects": effects_of_all_kinds,
        "uncertain": an_uncertain_effect,
        "rounds": goes_round,
    }
    found: dict[str, Any] = {
        name: CodeAgent(function, key=f"corpus_{name}", tools=TOOLS) for name, function in functions.items()
    }
    refusing = ScriptedModel([ModelError("no such model", type="NotFound", status=404)])
    found["refused"] = CodeAgent(a_model_that_refuses, key="corpus_refused", model=refusing)
    found["react"] = _react()
    return found


# What each scenario's run gives once it has been sent "go".
OUTPUTS = {
    "waits": {"found": ["<a>", "<b>", "<c>"], "nested": ["<<d>>", ["<<e>>", "<<f>>"]], "got": {"x": 1}},
    "asks": [{"echo": "<one>"}, {"echo": "<two>"}, "replied"],
    "effects": ["sent to ACME", 100_000, "error", "error", True],
    "uncertain": "it was sent",
    "rounds": 2,
    "refused": "NotFound: no such model",
    "react": "It is done.",
}
