"""A person stops an answer: what was shown of it is part of the conversation."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from ravi_django import ReActAgent, register
from ravi_django.kernel import ChatMessage, GenerationOptions, Role
from ravi_django.kernel.llm import ModelResponse, ReasoningDelta, StreamRestart, TextDelta, ToolCallDelta
from ravi_django.models import Run, Status, Turn
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


class Slow:
    """Stops in the middle of its first answer, and ends the second one."""

    name = "slow"

    def __init__(self, *, dies: bool = False) -> None:
        self.calls: list[list[ChatMessage]] = []
        self.dies = dies  # its worker, once the answer has ended

    async def stream(self, messages: Any, options: GenerationOptions, meta: Any) -> Any:
        self.calls.append(list(messages))
        if len(self.calls) == 1:
            yield TextDelta(text="lost")
            yield StreamRestart(model="slow", error_type="Overloaded")
            yield ReasoningDelta(text="hm")
            yield TextDelta(text="Once upon ")
            yield TextDelta(text="a time")
            yield ToolCallDelta(index=0, name="look", arguments='{"n": ')
            await asyncio.sleep(0 if self.dies else BOUND_S)
        yield ModelResponse(message=ChatMessage.of("assistant", "there was a fox."))


def test_go_on_goes_on_after_a_stop() -> None:
    user = User.objects.create_user("ada")
    model = Slow()
    register(ReActAgent("teller", model=model), access="authenticated", replace=True)

    async def stop_and_go_on() -> Run:
        async with world.Runtime() as rt:
            run = await rt.submit("react/teller", "A story.", user=user, session="story")
            async for event in rt.events(run):
                if getattr(event, "text", "").endswith("a time"):
                    await rt.cancel(run)
            again = await rt.submit("react/teller", "go on", user=user, session="story")
            await rt.result(again, timeout=BOUND_S)
            return await Run.objects.aget(id=again)

    run = asyncio.run(stop_and_go_on())
    seen = [(message.role, message.text) for message in model.calls[1]]
    assert seen == [(Role.USER, "A story."), (Role.ASSISTANT, "Once upon a time"), (Role.USER, "go on")]
    assert model.calls[1][1].content == ChatMessage.of("assistant", "Once upon a time").content, "the text alone"

    client = APIClient()
    client.force_authenticate(user)
    rows = client.get(f"/ravi/sessions/{run.session_id}/messages/").json()["results"]
    assert [(row["role"], row["interrupted"]) for row in rows] == [
        ("user", False), ("assistant", True), ("user", False), ("assistant", False),
    ]  # fmt: skip


def test_go_on_goes_on_after_the_worker_of_a_stopped_answer_was_killed(clock: Any) -> None:
    register(ReActAgent("teller", model=Slow(dies=True)), replace=True)
    run = drive(make_run("react/teller", text="A story."), dies=1)
    world.cancel(run.id, "enough")
    assert take_over(clock, run).status == Status.CANCELLED
    assert [(turn.role, turn.blocks[0]["text"], turn.name) for turn in Turn.objects.filter(run=run)] == [
        ("user", "A story.", ""), ("assistant", "Once upon a time", "ravi.stopped"),
    ]  # fmt: skip


def test_a_retry_after_a_deadline_answers_afresh() -> None:
    model = Slow()
    register(ReActAgent("teller", model=model), replace=True)
    run = drive(make_run("react/teller", budget={"deadline_s": 1}))
    assert (run.status, len(model.calls)) == (Status.FAILED, 1)
    run = drive(world.retry(run.id))
    assert (run.status, run.output) == (Status.COMPLETED, "there was a fox.")
    assert [turn.blocks[0]["text"] for turn in Turn.objects.all()] == ["hi", "there was a fox."]
