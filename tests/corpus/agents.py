"""The agents of the frozen journals and databases. Never change what is here: their rows were written by this code.

New scenarios are added beside the old ones, with a number of their own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ravi_django import HumanInput, PauseForInputResult, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import (
    AgentId,
    ImageBlock,
    ModelError,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    TransientError,
    Usage,
)
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


# --- of the frozen databases alone

WAITER = AgentId("test", "corpus_waiter")
SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
ROW = {"model": "row", "system_instructions": "Be brief.", "tool_names": ["send"], "approvers": "staff"}
SEALED = "gAAAA-encrypted-by-the-provider"
writes = False  # whether this process writes a database
is_wrong = False  # whether the code of one agent has changed


@tool
def order(answer: HumanInput | None = None) -> Any:
    """Order."""
    if answer is None:
        return PauseForInputResult({"size": "Which size?", "colour": "Which colour?"})
    return f"{answer.values['size']}, {answer.values['colour']}"


async def echoes(ctx, inbox):
    return inbox[0].payload.message.text


async def fails(ctx, inbox):
    raise ValueError("no")


async def waits_for_a_signal(ctx, inbox):
    return await ctx.sleep_until_signal("go")


async def joins_a_live_child(ctx, inbox):
    return (await ctx.join(await ctx.spawn(WAITER, "wait"))).kind


async def sleeps(ctx, inbox):
    await ctx.sleep(86_400)
    return "slept"


async def sends_once(ctx, inbox):
    assert inbox[0].id and inbox[0].correlation_id
    return (await ctx.tool("send", to="ACME")).text


async def has_other_code(ctx, inbox):
    first = await (ctx.tool("big", size=1) if is_wrong else ctx.tool("fetch", name="a"))
    await ctx.sleep_until_signal("go")
    return first.text


async def asks_a_model(ctx, inbox):
    from ravi_django.kernel import ChatMessage

    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def _answer_at_the_desk(messages, options):
    blocks = [block for message in messages for block in message.content]
    if "What is this?" in messages[-1].text:
        return [ThinkingBlock(text="It is small.", signature=SEALED), TextBlock(text="A dot.")]
    if "Send it." in messages[-1].text:
        return call(1, "send", to="ACME")
    images = [block for block in blocks if isinstance(block, ImageBlock) and block.data]
    sealed = [block.signature for block in blocks if isinstance(block, ThinkingBlock)]
    return f"{' '.join(message.role for message in messages)}, {len(images)} images, {sealed}"


def _refuse_while_written(messages, options):
    return TransientError("slow down", type="RateLimitError", status=429, retry_after=3600.0) if writes else "hello"


def model_of_row(name: str, **options: Any) -> ScriptedModel:
    """For the agent in the database; answers with its instructions."""
    return ScriptedModel([call(1, "send", to="ACME"), lambda messages, options: messages[0].text], name=name, **MODEL)


def of_databases() -> dict[str, Any]:
    """The agents of `agents()`, and those that only the databases have."""
    functions = {
        "echo": echoes,
        "failed": fails,
        "waiter": waits_for_a_signal,
        "tree": joins_a_live_child,
        "timer": sleeps,
        "lost": sends_once,
        "blocked": has_other_code,
    }
    found = agents() | {
        name: CodeAgent(function, key=f"corpus_{name}", tools=TOOLS) for name, function in functions.items()
    }
    limited = ScriptedModel([_refuse_while_written], name="corpus/limited")
    found["gate"] = CodeAgent(asks_a_model, key="corpus_gate", model=limited)
    found["desk"] = _scripted("desk", _answer_at_the_desk, "It was sent.", tools=TOOLS, approvers="staff")
    found["form"] = _scripted("form", call(1, "order"), "It was ordered.", tools=[order])
    fill = ToolUseBlock(tool_name="page_fill", arguments={"city": "Bonn"}, call_id="c1")
    found["page"] = _scripted("page", fill, "It is filled.", client_tools=True)
    return found


def _scripted(name: str, *script: Any, **options: Any) -> ReActAgent:
    return ReActAgent(name, id=f"test/corpus_{name}", model=ScriptedModel(script, **MODEL), **options)
