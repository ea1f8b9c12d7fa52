"""Handing over a root run: its session's queue, its spec, its turns, its stream, and what people do with it later."""

from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import register, signal
from ravi_django.agents import ReActAgent
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import AgentId, ConflictError, PermanentError
from ravi_django.models import InboxMessage, Run, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    CodeAgent,
    code,
    drive,
    idle,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    take_over,
    until,
)
from tests.support.world import DjangoHistoryProvider, retry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]

B = AgentId("test", "b")


def agent(key, function, *, tools=()):
    made = CodeAgent(function, key=key, tools=tools)
    register(made)
    return made


def text_of(message):
    return message.payload.message.text


async def shout(ctx, inbox):
    return text_of(inbox[0]).upper()


async def stay(ctx, inbox):
    await ctx.sleep_until_signal("go")
    return "stayed"


def handing_over(target=B, task=None):
    async def story(ctx, inbox):
        await ctx.handoff(target, task)

    return story


async def trying(ctx, inbox):
    try:
        await ctx.handoff(B)
    except ConflictError as error:
        return f"conflict: {error}"


def status_of(run):
    return Run.objects.values_list("status", flat=True).get(id=run.id)


def kinds(run, kind):
    return [row for row in journal_of(run) if row.kind == kind]


def test_what_was_queued_behind_the_first_agent_goes_on_at_once():
    agent("b", stay)
    code(handing_over())
    run = make_run()
    behind = make_run(session=run.session)
    assert behind.status == Status.QUEUED
    run = drive(run)
    assert (run.agent, status_of(behind)) == ("test/b", Status.PENDING)
    behind = make_run("test/b", session=run.session)
    assert behind.status == Status.QUEUED, "it waits for the run that came over"
    drive(run)
    signal(run.id, "go")
    run = drive(run)
    assert (run.status, status_of(behind)) == (Status.COMPLETED, Status.PENDING)


def test_an_agent_that_is_busy_in_the_session_refuses_and_every_replay_says_so(clock, step, ran):
    async def first(ctx, inbox):
        await ctx.tool("step", name="1")
        said = await trying(ctx, inbox)
        await ctx.tool("step", name="2")
        return said

    agent("b", stay)
    busy = drive(make_run("test/b"))
    code(first, tools=[step])
    run = drive(make_run(session=busy.session))
    assert (run.status, run.agent, run.generation) == (Status.PENDING, "test/code", 0)
    drive(run, dies="end")
    Run.objects.filter(id=busy.id).update(status=Status.COMPLETED)
    run = take_over(clock, run)
    words = "the session has another active run of test/b; wait for its end, or answer without it"
    assert run.output == f"conflict: {words}"
    assert [row.error["type"] for row in kinds(run, "run.handoff")] == ["ConflictError"]
    assert (ran, run.agent) == (["1", "2"], "test/code")
    assert InboxMessage.objects.filter(run=run).count() == 1


@on_postgresql
def test_a_run_that_is_submitted_meanwhile_is_queued_behind_the_one_that_comes_over(monkeypatch):
    agent("b", stay)
    code(handing_over())
    run = make_run()
    others = []

    def looking(*args):
        found = look(*args)
        others.append(in_background(lambda: make_run("test/b", session=run.session)))
        until(lambda: others[0].done() or somebody_waits_for_a_lock())
        return found

    look = world.handing_over_is_occupied
    world.patch(monkeypatch, "handing_over_is_occupied", looking)
    run = drive(run)
    assert (run.agent, run.status) == ("test/b", Status.PENDING)
    assert others[0].result(BOUND_S).status == Status.QUEUED


ROW = "react/helper"
SPEC = {
    "model": "scripted",
    "system_instructions": "Serve {{ customer }}.",
    "variables": {"customer": {"required": True}},
}


@pytest.fixture
def model(monkeypatch):
    found = ScriptedModel(["done"], name="scripted", loop=True)
    world.patch(monkeypatch, "build_model", lambda name, **options: found)
    return found


def test_an_agent_that_is_a_row_goes_on_with_its_newest_version_and_its_variables(model):
    world.save_spec(ROW, {**SPEC, "system_instructions": "Old."})
    newest = world.save_spec(ROW, SPEC)
    code(handing_over(ROW, "work"))
    run = idle(make_run(metadata={"variables": {"customer": "ACME", "mine": 1}, "else": 2}))
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "done", ROW)
    assert run.agent_version == newest.version == 2
    assert model.calls[0].messages[0].text == "Serve ACME."
    assert (run.metadata["variables"], run.metadata["else"]) == ({"customer": "ACME"}, 2)


def test_a_row_whose_variables_nobody_brings_refuses(model):
    async def story(ctx, inbox):
        try:
            await ctx.handoff(ROW)
        except PermanentError as error:
            return str(error)

    world.save_spec(ROW, SPEC)
    code(story)
    run = idle(make_run())
    assert "variables.customer is required" in run.output
    assert run.agent == "test/code"


@pytest.mark.parametrize(("retention", "left"), [("run", ["react/b"]), ("permanent", ["react/a", "react/b"])])
def test_turns_kept_for_the_run_alone_go_with_its_end_those_of_the_first_agent_too(retention, left):
    class Leaving(ReActAgent):
        async def run(self, ctx, inbox):
            await super().run(ctx, inbox)
            await ctx.handoff("react/b", "go on")

    memory = ContextConfig(DjangoHistoryProvider(), retention=retention)
    register(Leaving("a", model=ScriptedModel("mine"), context=memory))
    register(ReActAgent("b", model=ScriptedModel("its"), context=ContextConfig(DjangoHistoryProvider())))
    run = idle(make_run("react/a"))
    assert (run.status, run.output) == (Status.COMPLETED, "its")
    assert sorted({turn.by for turn in Turn.objects.filter(run=run).whole()}) == left


def test_the_stream_tells_it_once_and_ends_once():
    agent("b", shout)
    code(handing_over())
    run = make_run()
    run_until_idle()
    found, done = world.events_page(run.id)
    assert done
    assert [frame["seq"] for frame in found] == list(range(1, len(found) + 1))
    told = [(frame["type"], frame.get("step"), frame["agent"]) for frame in found]
    assert told == [
        ("progress", "started", "test/code"),
        ("progress", "handoff", "test/code"),
        ("progress", "started", "test/b"),
        ("progress", "done", "test/b"),
        ("stream.done", None, "test/b"),
    ]
    assert found[1]["content"] == {"agent": "test/b", "from": "test/code"}


def test_frames_made_again_from_the_journal_are_from_who_drove_the_run_then(monkeypatch):
    """A part of the journal is loaded at a time."""
    agent("b", shout)
    code(handing_over())
    run = make_run()
    run_until_idle()
    loaded = []
    world.patch(monkeypatch, "PUBLISH_PAGE", 1, raising=False)
    world.patch(monkeypatch, "publish_internalize", lambda rows: loaded.append(len(rows)))
    frames = world.snapshot(str(run.id))["frames"]
    assert [(frame["step"], frame["agent"]) for frame in frames] == [
        ("started", "test/code"),
        ("handoff", "test/code"),
        ("started", "test/b"),
        ("done", "test/b"),
    ]
    assert set(loaded) == {1}


def test_a_retry_of_a_run_that_failed_over_a_refusal_hands_over_after_all():
    code(handing_over())
    run = idle(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "AgentNotFoundError")
    agent("b", shout)
    retry(run.id)
    idle(run)
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "HI", "test/b")


def test_the_replay_check_replays_the_part_of_who_has_it(step):
    async def answer(ctx, inbox):
        await ctx.tool("step", name="b1")
        await ctx.sleep_until_signal("go")

    async def changed(ctx, inbox):
        await ctx.tool("step", name="other")

    agent("b", answer, tools=[step])
    code(handing_over())
    run = make_run()
    run_until_idle()
    code(changed)  # nobody replays the first agent's part
    call_command("ravi_replay_check", stdout=StringIO())
    agent("b", changed, tools=[step])
    with pytest.raises(SystemExit):
        call_command("ravi_replay_check", stdout=StringIO())
    assert status_of(run) == Status.SUSPENDED
