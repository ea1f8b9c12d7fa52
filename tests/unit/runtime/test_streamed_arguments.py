"""The arguments of a call while the model writes them: whose, and what is kept of them."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from ravi_django import tool
from ravi_django.agents import AgentTool, FunctionMiddleware, ReActAgent
from ravi_django.kernel import ArgumentsDelta, ToolUseBlock, event_of
from ravi_django.models import Run
from ravi_django.testing import warm
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import idle, make_run
from tests.support.writer import Writer

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def note(text: str) -> str:
    """Note it."""
    return "noted"


@tool(visible="staff")
def secret(text: str) -> str:
    """Keep it."""
    return "kept"


@tool(risk="high", effect="idempotent")
def wire(text: str) -> str:
    """Send money."""
    return "sent"


@tool(effect="idempotent", risk=lambda arguments: "high" if "much" in arguments["text"] else "low")
def pay(text: str) -> str:
    """Pay."""
    return "paid"


class Change(FunctionMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        await call_next()


def test_arguments_that_a_middleware_may_change_do_not_stream() -> None:
    block = ToolUseBlock(tool_name="note", arguments={"text": "two words"}, call_id="c1")
    world.register(ReActAgent("code", id="test/code", model=Writer([block]), tools=[note], middleware=[Change()]))
    run = idle(make_run())
    assert run.status == "completed"
    assert "arguments.delta" not in [frame["type"] for frame in world.events_page(run.id)[0]]


def test_arguments_stream_of_the_roots_open_tools_alone_and_are_not_kept(valkey_url: str) -> None:
    def calls(*names: str) -> list[ToolUseBlock]:
        more = {"handoff_expert": {"task": "two words"}}
        return [
            ToolUseBlock(tool_name=name, arguments=more.get(name, {"text": "two words"}), call_id=name)
            for name in names
        ]

    world.register(ReActAgent("expert", model=Writer(calls("note")), tools=[note]))
    names = ("note", "secret", "wire", "pay", "unknown", "handoff_expert")
    tools: list[Any] = [note, secret, wire, pay, AgentTool("react/expert")]
    yes: Any = lambda name, arguments, risk, ctx: True  # noqa: E731
    renamed = ToolUseBlock(tool_name="note", arguments={"text": "three words"}, call_id="functions.note:0")
    model = Writer([*calls(*names), renamed])
    agent = world.register(ReActAgent("clerk", model=model, tools=tools, approval_handler=yes))
    run = make_run(str(agent.id))

    async def until_the_end() -> None:
        async with world.Runtime() as runtime:
            await runtime.result(str(run.id), timeout=BOUND_S)

    warm.run(until_the_end())
    run.refresh_from_db()
    assert run.status == "completed" and Run.objects.count() == 2

    live = world.events_page(run.id, limit=1000)[0]
    with redis.Redis.from_url(valkey_url) as client:
        client.flushdb()
    kept = world.events_page(run.id, limit=1000)[0]

    def written(frames: Any) -> dict[tuple[str, str], str]:
        texts: dict[tuple[str, str], str] = {}
        for frame in (one for one in frames if one["type"] == "arguments.delta"):
            key = frame["run"], frame["tool"]
            texts[key] = texts.get(key, "") + frame["text"]
        return texts

    root = str(run.id)
    texts = {(root, "note"): '{"text":"two words"}', (root, "handoff_expert"): '{"task":"two words"}'}
    assert written(live) == texts and written(kept) == dict.fromkeys(texts, "")
    assert {type(event_of(frame)) for frame in live if frame["type"] == "arguments.delta"} == {ArgumentsDelta}
    assert "stream.gap" not in [frame["type"] for frame in kept]
