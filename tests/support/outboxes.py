"""What tests of the event bus's outbox look into it with."""

from __future__ import annotations

from typing import Any

from ravi_django.kernel import ChatMessage, Event
from ravi_django.models import OutboxEvent, Run
from ravi_django.testing import ScriptedModel
from tests.support.world import relay_event


def told(run: Run | None = None) -> list[Event]:
    events = [relay_event(row) for row in OutboxEvent.objects.all()]
    assert all(events)
    return [event for event in events if event and (run is None or event.correlation_id == str(run.id))]


def types(run: Run | None = None) -> list[str]:
    return [event.type for event in told(run)]


async def answers(ctx: Any, inbox: Any) -> str:
    await ctx.log("note", {})
    return "fine"


async def steps(ctx: Any, inbox: Any) -> str:
    await ctx.llm([ChatMessage.of("user", "hi")])
    return "fine"


MODEL = ScriptedModel("hello", loop=True)
