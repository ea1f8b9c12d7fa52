"""Hooks of middleware: each event once, none again in a replay."""

import asyncio

import pytest

from ravi_django.agents import Hooks
from ravi_django.kernel import (
    ChatMessage,
    TransientError,
)
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel
from ravi_django.tools import AskHumanTool
from tests.support import world
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)


async def say(ctx, inbox):
    """One model call; its text is the output."""
    return (await ctx.llm([ChatMessage.of("user", "hello")])).text


def with_middleware(story, *middlewares, **options):
    agent = code(story, **options)
    agent.middleware = list(middlewares)
    return agent


def test_hooks_are_told_what_happens_once_and_a_replay_tells_nothing(clock, step):
    told = []

    async def story(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", "hello")])
        await ctx.tool("step", name="a")
        return "done"

    agent = code(story, model=ScriptedModel(["fine"]), tools=[step])
    agent.hooks = [{"run_start": told.append, "llm_start": told.append, "tool_end": told.append}, Listener(told)]
    run = drive(make_run(), dies="end")
    before = [call.event for call in told]
    take_over(clock, run)
    assert before == ["run_start", "llm_start", "llm_end", "tool_end"]
    assert [call.event for call in told] == [*before, "run_end"]
    ended = told[-1]
    assert (ended.run_id, ended.data["status"], ended.data["output"]) == (str(run.id), "completed", "done")


class Listener:
    def __init__(self, told):
        self.told = told

    async def on_llm_end(self, call):
        await asyncio.sleep(0)
        self.told.append(call)

    def on_run_end(self, call):
        self.told.append(call)


def test_a_hook_cannot_change_what_it_is_shown(step, ran):
    def meddle(call):
        call.data["arguments"]["name"] = "b"

    agent = code(calling("step", name="a"), tools=[step])
    agent.hooks = {"tool_start": meddle}
    drive(make_run())
    assert ran == ["a"]


def test_a_listener_that_listens_to_nothing_is_refused():
    with pytest.raises(TypeError, match="has no hooks"):
        Hooks([object()])
    with pytest.raises(TypeError, match="unknown hook event 'lunch'"):
        Hooks([{"lunch": print}])


def raising(error):
    def ends(call):
        raise error("enough")

    return ends


async def hangs(call):
    await asyncio.Event().wait()


async def cancels(call):
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def test_whatever_a_hook_does_is_no_end_of_the_run(caplog, monkeypatch):

    monkeypatch.setattr("ravi_django.agents.middleware.HOOK_TIMEOUT_S", 0.05)
    agent = code(say, model=ScriptedModel(["fine"], loop=True))
    errors = (KeyError, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
    for listening in (*({"llm_end": hook} for hook in (*map(raising, errors), hangs, cancels)), {}, [], None):
        agent.hooks = listening
        assert drive(make_run()).output == "fine", listening
    assert all(error.__name__ in caplog.text for error in errors)


def told_events(story, *names, **options):
    told = []
    agent = code(story, **options)
    agent.hooks = {name: lambda call: told.append((call.event.value, call.data.get("error"))) for name in names}
    return told


def test_a_model_call_that_is_tried_again_ends_with_its_error(clock):
    replies = [TransientError("later"), "fine"]
    model = ScriptedModel([lambda messages, options: replies.pop(0)])
    told = told_events(say, "llm_start", "llm_end", model=model)
    run = drive(make_run())
    clock.advance(120)
    run = drive(run)
    assert run.output == "fine"
    error = {"type": "TransientError", "message": "later"}
    assert told == [("llm_start", None), ("llm_end", error), ("llm_start", None), ("llm_end", None)]


def test_a_tool_that_waits_starts_once(clock):
    story = calling("ask_human", question="Which colour?")
    told = told_events(story, "tool_start", "tool_end", tools=[AskHumanTool()])
    run = drive(make_run())
    world.answer(asked(run).id, text="red")
    run = drive(run)
    assert run.status == Status.COMPLETED, run.error
    assert [event for event, _ in told] == ["tool_start", "tool_end"]


def test_a_run_starts_once_however_often_it_begins_anew():
    async def story(ctx, inbox):
        if inbox:
            await ctx.continue_as_new()
        return "done"

    told = told_events(story, "run_start", "run_end")
    run = drive(make_run())
    run = drive(run)
    assert (run.output, run.generation) == ("done", 1)
    assert [event for event, _ in told] == ["run_start", "run_end"]
