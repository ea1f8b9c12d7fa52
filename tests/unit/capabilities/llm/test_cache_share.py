"""How much of a long conversation Claude reads from its cache, and how much of a request is the one before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ravi_django.agents import ContextConfig, InMemoryHistoryProvider, ReActAgent
from ravi_django.kernel import ModelResponse, RunMeta
from ravi_django.testing import warm
from tests.support.fake_context import FakeContext
from tests.support.histories import Say, Wire
from tests.support.providers import Body, ClaudeCache
from tests.support.react import ask, echo

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute")  # litellm's own


class Asking(FakeContext):
    """Its model is a stand-in of Claude below litellm."""

    def __init__(self, wire: Wire, run_id: str) -> None:
        super().__init__(tools=[echo], run_id=run_id)
        self.wire = wire

    async def llm(self, messages: Any, *, options: Any = None, model: Any = None) -> ModelResponse:
        events = [event async for event in self.wire.stream(messages, options, RunMeta(run_id=self.run_id))]
        assert isinstance(events[-1], ModelResponse)
        return events[-1]


def conversation(turns: int, *, calls: int = 1, at: int = 25) -> list[Body]:
    """The requests of so many turns of about 300 tokens with a call, one turn with so many calls at once."""
    wire = Wire()
    wire.dialect = "claude"
    context = ContextConfig(InMemoryHistoryProvider())
    agent = ReActAgent("long", model=wire, tools=[echo], context=context, system_instructions="Help people. " * 1_540)

    async def talk() -> None:
        for turn in range(turns):
            used = tuple(("call", "echo", "", json.dumps({"label": f"{turn} " * 40})) for _ in range(calls))
            wire.script = [Say(used if turn == at else used[:1]), Say((("text", f"It is {turn}. " * 25),))]
            await agent.run(Asking(wire, f"run-{turn}"), [ask(f"And {turn}? " * 25)])  # type: ignore[arg-type]

    with wire.connected():
        warm.run(talk())
    assert not wire.refused, wire.refused[0]
    return wire.requests


def test_nine_tenths_of_a_conversation_are_read_from_the_cache() -> None:
    cache = ClaudeCache()
    for request in conversation(50, calls=25):
        cache.add(request)
    assert cache.read / cache.input >= 0.9, (cache.read, cache.input)
