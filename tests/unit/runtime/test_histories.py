"""Whatever agents, models and accidents make of a conversation, the next request is one that its provider takes."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from hypothesis import example, given, settings, strategies as st
from pydantic import BaseModel

from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import (
    CompactionPipeline,
    ContextConfig,
    DjangoHistoryProvider,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.kernel import ChatMessage, ImageBlock
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import FakeClock, warm
from tests.support import world
from tests.support.histories import ASKED, DIALECTS, PIXEL, Say, Turn, Wire, stories
from tests.support.runs import drive, take_over

HISTORIES = int(os.environ.get("HISTORIES", "20"))
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(7200 if HISTORIES > 100 else 120),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
PIPELINES = [
    None,
    lambda: SlidingWindowCompaction(4),
    lambda: TruncationCompaction(90),
    lambda: SummarizationCompaction(5, keep_last=2),
    lambda: TokenBudgetComposed(ToolResultCompaction(1), SelectiveToolCallCompaction(1), max_tokens=120),
]


class Parcel(BaseModel):
    order: int


class Story:
    """One conversation of two agents."""

    def __init__(self, clock: FakeClock, pipeline: int, typed: bool) -> None:
        self.clock, self.wire = clock, Wire()
        self.session: Any = None
        self.agents = [self._agent(f"agent{number}", pipeline, typed) for number in range(2)]

    def _agent(self, key: str, pipeline: int, typed: bool) -> ReActAgent:
        moment = self.wire.moment

        @tool
        async def echo(text: str = "nothing") -> str:
            """Say it again."""
            await moment()
            return text

        @tool
        def fails() -> str:
            """Fail."""
            raise ValueError("it is broken")

        @tool
        async def picture() -> ImageBlock:
            """Look."""
            await moment()
            return ImageBlock(data=PIXEL, mime_type="image/png")

        @tool
        def silent() -> str:
            """Nothing."""
            return ""

        make = PIPELINES[pipeline]
        context = ContextConfig(DjangoHistoryProvider(), make and CompactionPipeline(make()))
        options: Any = {"result_model": Parcel} if typed else {}
        tools = [echo, fails, picture, silent]
        agent = ReActAgent(
            key, model=self.wire, tools=tools, context=context, system_instructions="Help.", max_iterations=4, **options
        )
        return register(agent, replace=True)

    def play(self, turn: Turn) -> None:
        wire = self.wire
        wire.dialect, wire.script, wire.moments, wire.at = turn.dialect, list(turn.says), 0, None
        run = submit(self.agents[turn.agent], ASKED[turn.asked], session=self.session)
        self.session = run.session_id
        kind, when = turn.cut or ("", 0)
        if kind == "cancel":
            run = drive(run, setup=partial(self._cancel_at, run, when))
        elif kind.startswith("crash"):
            run = drive(run, dies=when, written=kind == "crash after")
            run = take_over(self.clock, run) if run.status == Status.RUNNING else run
        else:
            run = drive(run)
        if run.status == Status.FAILED and run.error["type"] != "BudgetExhaustedError":
            run = drive(world.retry(run.id))
        if kind == "fork":
            rows = JournalEntry.objects.filter(run_id=run.id).count()
            run = drive(world.fork(run.id, 1 + when * rows // 21))
            self.session = run.session_id
        assert run.is_terminal, run.status

    def _cancel_at(self, run: Run, when: int, engine: Any) -> None:
        async def cancel() -> None:
            await engine.database.call(world.cancel, run.id, "a person has stopped it")
            engine.cancel_run(run.id)

        self.wire.at = when, cancel

    async def ask_all(self) -> None:
        """Each agent's next request, in each dialect."""
        for agent in self.agents:
            view = await agent.context.get_prompt_window(str(self.session))
            for dialect in DIALECTS:
                await self.wire.ask(dialect, [*view, ChatMessage.of("user", "and now?")])
        await sync_to_async(connections.close_all)()


THOUGHT_AT_ITS_END = Turn(0, 0, "claude", [Say((("call", "echo", "", '{"text": "x"}'),)), Say((("thought",),))], None)
BROKEN_CALL = Turn(0, 0, "responses", [Say((("thought",), ("call", "echo", "", '{"text": "cut')))], None)
cases = given(st.integers(0, len(PIPELINES) - 1), st.booleans(), stories)


@cases
@example(0, False, [THOUGHT_AT_ITS_END])
@example(0, False, [BROKEN_CALL])
@settings(max_examples=HISTORIES // 2)  # a conversation has one for each of its two agents
def test_each_request_is_accepted(pipeline: int, typed: bool, turns: list[Turn]) -> None:
    with FakeClock() as clock:
        story = Story(clock, pipeline, typed)
        with story.wire.connected():
            for turn in turns:
                story.play(turn)
            warm.run(story.ask_all())
    assert not story.wire.refused, story.wire.refused[0]
