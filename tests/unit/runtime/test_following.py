"""A program of the site follows a run: typed events in Python, the same as the frames of REST."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from django.contrib.auth.models import User
from django.db import DataError
from rest_framework.test import APIClient

from ravi_django import answer, asignal, register, signal, submit, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.kernel import (
    AgentId,
    AgentProgress,
    AgentStep,
    CompletionEvent,
    ErrorEvent,
    InvalidInputError,
    NotFoundError,
    RequestClosed,
    RequestOpened,
    StreamDone,
    StreamEvent,
    StreamGap,
    ToolUseBlock,
    event_of,
)
from ravi_django.models import Run
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import asked, code

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada")


def call(name: str, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name=name, arguments=arguments, call_id=name)


def finished(agent: Any, **options: Any) -> Run:
    run = submit(register(agent, access="authenticated", replace=True), "hi", **options)
    run_until_idle()
    run.refresh_from_db()
    return run


def test_the_pages_loop_submits_follows_and_answers(user: User) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        return "refunded" if (await ctx.ask_human("May I?", ["yes", "no"]))["text"] == "yes" else "kept"

    agent = code(story)
    agent.id = AgentId("react", "helper")
    register(agent, access="authenticated")

    assert asyncio.run(Page("events-in-python").run("shop/desk.py")["serve"]("Refund order 7.", user)) == "refunded"


def test_events_are_the_frames_of_rest_each_of_its_class(user: User) -> None:
    member = ReActAgent("member", model=ScriptedModel("found"))
    model = ScriptedModel([call("handoff_member", task="look"), "all done"])
    lead = OrchestratorAgent("lead", model=model, sub_agents=[SubAgentConfig(member)])
    run = finished(lead, user=user)
    client = APIClient()
    client.force_authenticate(user)
    frames = client.get(f"/ravi/runs/{run.id}/events/", headers={"Accept": "application/json"}).json()["results"]
    events = [*run.events()]

    assert events == [event_of(frame) for frame in frames]
    assert [(event.seq, str(event.agent_id)) for event in events] == [(one["seq"], one["agent"]) for one in frames]
    assert isinstance(events[-1], StreamDone) and not any(type(event) is StreamEvent for event in events)
    below = {(event.parent_id, event.parent_run_id) for event in events if event.depth == 1}
    assert below == {(lead.id, str(run.id))}
    assert Page("events-in-python").run("shop/printing.py")["text_of"](frames).endswith("all done")
    assert [*run.events(after=events[-2].seq)] == events[-1:]


def test_a_user_sees_no_hidden_value_and_no_run_of_others(user: User) -> None:
    @tool(visible="staff")
    def look_up(number: int) -> str:
        """Look up."""
        return "a secret"

    agent = ReActAgent("clerk", model=ScriptedModel([call("look_up", number=7), "done"]), tools=[look_up])
    run = finished(agent, user=user)

    def seen(**of: Any) -> tuple[Any, Any]:
        events = [*run.events(**of)]
        used = next(event for event in events if isinstance(event, CompletionEvent)).content[0]
        steps = {event.step: event.content for event in events if isinstance(event, AgentProgress)}
        return used.arguments, steps[AgentStep.TOOL_RESULT]["text"]

    assert seen() == ({"number": 7}, "a secret")
    assert seen(user=user) == ({}, None)
    with pytest.raises(NotFoundError, match=f"no run {run.id} of this user"):
        list(run.events(user=User.objects.create_user("eve")))


def test_requests_are_events_and_a_waiting_run_says_so_at_once(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "manual"}

    async def story(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask_human("Which?", ["a", "b"]))["text"])

    run = finished(code(story))
    events = run.events()
    request = next(event for event in events if isinstance(event, RequestOpened))
    with pytest.raises(RuntimeError, match="run_until_idle"):
        list(events)
    assert (request.id, request.kind, request.choices) == (str(asked(run).id), "question", ["a", "b"])

    answer(request, text="a")
    run_until_idle()
    closed = [event for event in run.events() if isinstance(event, RequestClosed)]
    assert [(event.id, event.status) for event in closed] == [(request.id, "answered")]


def test_the_buffer_is_away_and_nothing_is_missed(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(ReActAgent("away", model=ScriptedModel("hello")))
    whole, read, fails = [*run.events()], type(world.get_buffer()).read, [True, True]
    world.patch(monkeypatch, "FOLLOWING_AGAIN_S", 0.01)

    def unreliable(*args: Any, **options: Any) -> Any:
        if fails:
            fails.pop()
            raise redis.ConnectionError("away")
        return read(*args, **options)

    monkeypatch.setattr(type(world.get_buffer()), "read", unreliable)
    assert [*run.events()] == whole and not fails

    fails.append(True)
    world.patch(monkeypatch, "FOLLOWING_TRIES", 0)
    with pytest.raises(redis.ConnectionError):
        list(run.events())


def test_the_events_of_a_blocked_run_end_with_its_error() -> None:
    leases: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        leases.append(ctx)  # another call in the second lease: the journal does not fit
        await (ctx.log("a") if len(leases) == 1 else ctx.spawn("test/code", "x"))
        await ctx.sleep_until_signal("go")

    run = finished(code(story))
    signal(run, "go")
    run_until_idle()
    events = [*run.events()]
    assert isinstance(events[-1], ErrorEvent) and Run.objects.get().status == "blocked"
    assert [*run.events(after=events[-1].seq or 0)] == []


def test_a_lasting_error_of_the_database_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "FOLLOWING_AGAIN_S", 60)
    monkeypatch.setattr(type(world.get_buffer()), "read", Mock(side_effect=DataError))
    with pytest.raises(DataError):
        next(finished(ReActAgent("odd", model=ScriptedModel("hello"))).events())


def test_a_runtime_cancels_what_it_follows_and_names_a_wrong_id() -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.sleep(3600)

    async def follow() -> str | None:
        async with world.Runtime() as rt:
            for unknown in (world.uuid7(), "nonsense", None):
                for call in (rt.cancel, rt.result, lambda run: anext(rt.events(run)), lambda run: asignal(run, "go")):
                    with pytest.raises(NotFoundError, match=f"there is no run '?{unknown}"):
                        await call(unknown)
            async for event in rt.stream(code(story), "hi"):
                if isinstance(event, AgentProgress) and event.step == AgentStep.PAUSED:
                    await rt.cancel(event.run_id or "")
        return event.reason if isinstance(event, StreamDone) else None

    assert asyncio.run(follow()) == "cancelled"


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"type": "accepted", "run": "1"}, "type: text.delta"),
        ({"type": "error", "code": "conflict", "message": "no"}, "It has a run"),  # a socket's answer to a command
        ({"type": "text.delta", "run": "1", "agent": "a/b"}, "TextDelta text Field required$"),
        ({"type": "text.delta", "run": "1", "agent": "nobody", "text": ""}, "agent_id"),
        ({"type": "completion", "run": "1", "content": 3}, "not iterable"),
        ("text.delta", "not a frame"),
    ],
)
def test_event_of_refuses_what_is_no_frame(frame: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        event_of(frame)


def test_a_gap_has_the_events_of_its_snapshot() -> None:
    said = {"type": "error", "run": "1", "agent": "a/b", "code": "X", "message": "no"}
    frame = {"seq": 9, "type": "stream.gap", "run": "1", "agent": "a/b", "from": 3, "to": 8}
    gap = event_of(frame | {"snapshot": {"status": "failed", "output": None, "frames": [said]}})

    assert isinstance(gap, StreamGap) and (gap.first, gap.last, gap.status) == (3, 8, "failed")
    assert gap.events == [event_of(said)]
