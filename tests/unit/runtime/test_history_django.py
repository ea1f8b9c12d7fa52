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
from tests.support.runs import code, drive, make_run, take_over

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
def test_a_run_stores_its_turns_with_its_calls(clock):
    remembering("hello")

    run = drive(make_run("react/memory", text="hi"))

    assert run.output == "hello"
    assert texts() == ["hi", "hello"]
    assert list(Turn.objects.order_by("position").values_list("run", "index")) == [(run.id, 0), (run.id, 1)]
    assert Session.objects.get().next_position == 2


@pytest.mark.parametrize("dies", [1, "end"])
@pytest.mark.parametrize("written", [False, True])
def test_a_crash_between_turns_and_finish_stores_each_turn_once(clock, dies, written):
    model = remembering(shown).model
    run = drive(make_run("react/memory", text="hi"), dies=dies, written=written)

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "saw hi")
    assert texts() == ["hi", "saw hi"]
    assert len(model.calls) == (2 if (dies, written) == (1, False) else 1)


def test_a_replay_reads_the_history_that_the_first_execution_read(clock):
    """Turns that another agent's run, or a person, adds to the session in between are not seen."""
    remembering(shown)
    session = drive(make_run("react/memory", text="one")).session
    run = drive(make_run("react/memory", text="two", session=session), dies="end")
    add(AgentId("react", "memory"), session, ["from elsewhere"])

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "saw one|saw one|two")
    assert not JournalEntry.objects.filter(kind="replay.drift").exists()


def test_what_was_read_is_in_the_journal(clock):
    remembering(shown)
    session = drive(make_run("react/memory", text="one")).session

    run = drive(make_run("react/memory", text="two", session=session))

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


def test_turns_of_a_run_that_failed_are_kept(clock):
    async def story(ctx, inbox):
        history = DjangoHistoryProvider()
        await history.append_many(
            ctx.agent_id, ctx.session_id, [ChatMessage.of("user", "hi")], run_id=ctx.run_id, start=0
        )
        raise ValueError("no")

    code(story)

    run = drive(make_run())

    assert run.status == Status.FAILED
    assert texts() == ["hi"]


def test_the_turns_of_a_cancelled_run_are_kept(clock):
    async def story(ctx, inbox):
        history = DjangoHistoryProvider()
        await history.append_many(
            ctx.agent_id, ctx.session_id, [ChatMessage.of("user", "hi")], run_id=ctx.run_id, start=0
        )
        await ctx.tool("hold")

    run = cancelled_in(make_run(), story)

    assert run.status == Status.CANCELLED
    assert texts() == ["hi"]


def test_reading_a_long_history_is_one_query(django_assert_num_queries):
    from tests.support.world import history_read

    session = world.create_session(Session())
    add(AGENT, session, map(str, range(50)))

    with django_assert_num_queries(1):
        assert len(history_read(AGENT, session.id)) == 50
