"""The history in the database does what every history does; inside a run it is part of the journal."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage
from ravi_django.models import JournalEntry, Session, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.gates import cancelled_in
from tests.support.history_contract import AGENT, HistoryContract
from tests.support.runs import code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


class TestDjangoHistoryProvider(HistoryContract):
    @pytest_asyncio.fixture
    async def provider(self):
        yield DjangoHistoryProvider()
        await sync_to_async(connections.close_all)()

    async def new_session(self):
        session = await sync_to_async(world.create_session)(Session(agent=str(AGENT)))
        return str(session.id)

    async def new_run(self, session_id):
        def make():
            session = Session.objects.get(id=session_id)
            return make_run(f"test/{Session.objects.count()}{session.runs.count()}", session=session)

        return str((await sync_to_async(make)()).id)


def add(agent_id, session, texts):
    """From outside of any run, as a view would."""

    async def append():
        messages = [ChatMessage.of("user", text) for text in texts]
        await DjangoHistoryProvider().append_many(agent_id, str(session.id), messages)
        await sync_to_async(connections.close_all)()

    asyncio.run(append())


def remembering(*script):
    return world.register(
        ReActAgent("memory", model=ScriptedModel(list(script)), context=ContextConfig(DjangoHistoryProvider()))
    )


def texts():
    return [turn.content[0]["text"] for turn in Turn.objects.order_by("position")]


def shown(messages, options):
    return "saw " + "|".join(message.text for message in messages)


@pytest.mark.sqlite
def test_a_run_stores_its_turns_with_its_calls_each_once_wherever_its_worker_dies(clock):
    model = remembering(shown).model

    def story(drive):
        model.calls.clear()
        return drive(make_run("react/memory", text="hi"))

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "saw hi")
        assert texts() == ["hi", "saw hi"]
        assert list(Turn.objects.order_by("position").values_list("run", "index")) == [(run.id, 0), (run.id, 1)]
        assert Session.objects.get().next_position == 2
        assert len(model.calls) == 1 + death.lost("llm.call")


def test_a_replay_reads_the_history_that_the_first_execution_read(clock):
    """Turns that another agent's run, or a person, adds to the session in between are not seen."""
    remembering(shown)
    session = drive(make_run("react/memory", text="one")).session
    run = drive(make_run("react/memory", text="two", session=session), dies="end")
    add(AgentId("react", "memory"), session, ["from elsewhere"])
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "saw one|saw one|two")
    assert not JournalEntry.objects.filter(kind="replay.drift").exists()
    read = next(entry for entry in journal_of(run) if entry.kind == "history.read")
    assert (read.result["position"], read.result["count"]) == (2, 2)


def test_a_history_that_was_changed_under_a_run_is_noted(clock):
    remembering(shown)
    session = drive(make_run("react/memory", text="one")).session
    run = drive(make_run("react/memory", text="two", session=session), dies="end")
    Turn.objects.filter(index=0).update(content=[{"type": "text", "text": "forged"}])
    run = take_over(clock, run)
    assert run.output == "saw one|saw one|two"  # the recorded answer
    assert ["history"] in [entry.result["changed"] for entry in journal_of(run) if entry.kind == "replay.drift"]


def test_turns_of_a_run_that_failed_or_was_cancelled_are_kept(clock):
    async def story(ctx, inbox):
        said = [ChatMessage.of("user", f"hi {inbox[0].payload.message.text}")]
        await DjangoHistoryProvider().append_many(ctx.agent_id, ctx.session_id, said, run_id=ctx.run_id, start=0)
        if inbox[0].payload.message.text == "fail":
            raise ValueError("no")
        await ctx.tool("hold")

    code(story)
    assert drive(make_run(text="fail")).status == Status.FAILED
    assert cancelled_in(make_run(text="hold"), story).status == Status.CANCELLED
    assert texts() == ["hi fail", "hi hold"]


def test_reading_a_long_history_is_one_query(django_assert_num_queries):
    from tests.support.world import history_read

    session = world.create_session(Session())
    add(AGENT, session, map(str, range(50)))
    with django_assert_num_queries(1):
        assert len(history_read(AGENT, session.id)) == 50
