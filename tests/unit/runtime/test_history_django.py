"""The history in the database does what every history does. What a run reads, counts, clears, keeps for itself or seeds
of it is part of the journal: once, and the same in every replay."""

import asyncio

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.db import connections

from ravi_django.agents import ReActAgent, load_session_memory, tool
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import AgentId, ChatMessage, RunContext, ToolUseBlock
from ravi_django.models import JournalEntry, Session, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.conversations import add_turns
from tests.support.gates import cancelled_in
from tests.support.history_contract import AGENT, HistoryContract
from tests.support.runs import code, drive, every_death, make_run, on_postgresql, take_over
from tests.support.world import read_window

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


def remembering(*script):
    context = ContextConfig(DjangoHistoryProvider())
    return world.register(ReActAgent("memory", model=ScriptedModel(list(script)), context=context))


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
    add_turns("react/memory", session, "from elsewhere")
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "saw one|saw one|two")
    assert not JournalEntry.objects.filter(kind="replay.drift").exists()
    read = next(entry for entry in journal_of(run) if entry.kind == "history.read")
    assert (read.result["position"], read.result["count"]) == (2, 2)


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


HISTORY = DjangoHistoryProvider()
OTHER = AgentId("test", "other")


def session_with(*texts):
    session = world.create_session(Session(agent="test/code"))
    add_turns("test/code", session, *texts)
    return session


async def say(ctx, text, agent_id=None):
    await HISTORY.append(agent_id or ctx.agent_id, ctx.session_id, ChatMessage.of("user", text), run_id=ctx.run_id)


@pytest.mark.parametrize("dies", [2, "end"])
def test_a_replay_deletes_nothing_that_was_stored_after_the_clear(clock, dies):
    async def story(ctx, inbox):
        await HISTORY.clear(ctx.agent_id, ctx.session_id)
        await say(ctx, "new")
        await ctx.emit("t", 1)
        await say(ctx, "newer")
        return "done"

    code(story)
    run = take_over(clock, drive(make_run(session=session_with("old")), dies=dies, written=dies == 2))
    assert (run.status, texts()) == (Status.COMPLETED, ["new", "newer"])


def test_a_clear_that_was_not_recorded_has_not_happened(clock):
    async def story(ctx, inbox):
        await say(ctx, "mine")
        await HISTORY.clear(ctx.agent_id, ctx.session_id)
        return "done"

    code(story)
    run = drive(make_run(session=session_with("old")), dies=1)
    assert texts() == ["old"]
    run = take_over(clock, run)
    assert (run.status, texts()) == (Status.COMPLETED, [])


def test_a_count_is_the_same_in_a_replay(clock):
    async def story(ctx, inbox):
        found = [await HISTORY.count(ctx.agent_id, ctx.session_id)]
        if found == [1]:
            await ctx.emit("few", found)
        else:
            await ctx.log("many")
        await say(ctx, "own")
        await ctx.emit("t", 1)
        found.append(await HISTORY.count(ctx.agent_id, ctx.session_id))
        return found

    code(story)
    session = session_with("old")
    run = drive(make_run(session=session), dies=2, written=True)
    add_turns("test/code", session, "from elsewhere")
    run = take_over(clock, run)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert run.output == "[1,2]"  # the second one was not recorded


def test_clearing_a_run_leaves_the_turns_of_other_agents(clock):
    async def story(ctx, inbox):
        await say(ctx, "theirs", OTHER)
        await say(ctx, "mine")
        await HISTORY.clear_run(ctx.agent_id, ctx.session_id, ctx.run_id)
        await say(ctx, "mine again")
        await ctx.emit("t", 1)
        return "done"

    code(story)
    run = drive(make_run(session=session_with("before")), dies="end")
    assert texts() == ["before", "theirs", "mine again"]
    run = take_over(clock, run)
    assert (run.status, texts()) == (Status.COMPLETED, ["before", "theirs", "mine again"])


def test_a_worker_without_its_lease_clears_nothing(clock):
    async def story(ctx, inbox):
        await sync_to_async(clock.advance)(10_000)
        await ctx.recorder.database.call(world.claim, ctx.recorder.lease.run_id, "another")
        await HISTORY.clear(ctx.agent_id, ctx.session_id)

    code(story)
    drive(make_run(session=session_with("old")))
    assert texts() == ["old"]


@tool
async def hold(ctx: RunContext) -> str:
    """Hold."""
    await ctx.sleep_until_signal("go")
    return "held"


def private(*script, retention="run"):
    context = ContextConfig(DjangoHistoryProvider(), retention=retention)
    agent = ReActAgent("private", model=ScriptedModel(list(script)), tools=[hold], context=context)
    return world.register(agent)


def held():
    return ToolUseBlock(tool_name="hold", arguments={}, call_id="c1")


@pytest.mark.parametrize(
    ("retention", "left", "by"),
    [("run", [], "cancellation"), ("run", [], "deadline"), ("permanent", ["hi"], "cancellation")],
)
def test_a_run_that_ends_while_it_waits_takes_its_own_turns_along(clock, retention, left, by):
    private(held(), retention=retention)
    run = drive(make_run("react/private", budget={"deadline_s": 60}))
    assert run.status == Status.SUSPENDED
    assert texts_of_users() == ["hi"]
    if by == "cancellation":
        world.cancel(run.id, "enough")
        run.refresh_from_db()
    else:
        clock.advance(61)
        run = drive(run)
    assert run.status in (Status.FAILED, Status.CANCELLED)
    assert texts_of_users() == left
    assert [message.text for message in read_window(AgentId("react", "private"), run.session_id)][:1] == left


def texts_of_users():
    return [turn.blocks[0]["text"] for turn in Turn.objects.filter(role="user").order_by("position")]


def test_a_run_that_completes_takes_its_own_turns_along_and_no_other(clock):
    private("fine")
    session = world.create_session(Session(agent="react/private"))
    add_turns("react/private", session, "before")
    run = take_over(clock, drive(make_run("react/private", session=session), dies="end"))
    assert (run.status, run.output) == (Status.COMPLETED, "fine")
    assert texts() == ["before"]


STEPS = [{"kind": "user_message", "content": "I am Ada"}, {"kind": "assistant_message", "content": "Hello Ada."}]
CALL = ToolUseBlock(tool_name="look", arguments={}, call_id="c1")
WHOLE = ["I am Ada", "Hello Ada.", "who am I?", "", "", "Ada"]


@tool
def look() -> str:
    """Look."""
    return "done"


def texts():
    return [(turn.blocks[0].get("text") or "") for turn in Turn.objects.order_by("position")]


class Seeding:
    """An agent that has its conversation filled from cold storage, or adds to it, before another one runs on it."""

    def __init__(self, how, *script):
        self.memory = DjangoHistoryProvider()
        self.model = ScriptedModel(list(script))
        context = ContextConfig(self.memory)
        self.react = ReActAgent("inner", id="test/code", model=self.model, tools=[look], context=context)
        self.how = how
        self.agent = code(self.run, model=self.model, tools=[look])

    async def run(self, ctx, inbox):
        if self.how == "load":
            await load_session_memory(ctx.session_id, self.load, self.memory, agent_id=ctx.agent_id)
        else:
            for role, text in (("user", "I am Ada"), ("assistant", "Hello Ada.")):
                await self.memory.append(ctx.agent_id, ctx.session_id, ChatMessage.of(role, text))
        return await self.react.run(ctx, inbox)

    def load(self, session_id):
        return STEPS


@pytest.mark.parametrize("how", ["load", "append"])
def test_what_is_seeded_in_a_run_leaves_its_own_turns_alone_and_a_takeover_seeds_nothing_twice(clock, how):
    seeding = Seeding(how, CALL, "Ada")
    for run, _ in every_death(clock, lambda drive: drive(make_run(text="who am I?"))):
        assert (run.status, texts()) == (Status.COMPLETED, WHOLE)
    assert how == "append" or [message.text for message in seeding.model.calls[0].messages] == WHOLE[:3]


def test_an_agent_that_runs_twice_in_a_run_keeps_both_conversations(clock):
    memory, model = DjangoHistoryProvider(), ScriptedModel(["one"])

    async def both(ctx, inbox):
        for key in ("code", "other"):
            with ctx.scope(key):
                await ReActAgent("inner", id=f"test/{key}", model=model, context=ContextConfig(memory)).run(ctx, inbox)

    code(both, model=model)
    take_over(clock, drive(make_run(text="hi"), dies=2, written=True))
    assert texts() == ["hi", "one", "hi", "one"]


@on_postgresql
def test_several_processes_that_seed_at_once_seed_once():
    session = world.create_session(Session(agent="test/code"))
    together = asyncio.Barrier(3)

    async def load(session_id):
        await together.wait()  # everybody has seen the miss
        return STEPS

    async def seed():
        providers = [DjangoHistoryProvider() for _ in range(3)]
        id = str(session.id)
        await asyncio.gather(*(load_session_memory(id, load, one, agent_id="test/code") for one in providers))
        await sync_to_async(connections.close_all)()

    asyncio.run(seed())
    assert texts() == WHOLE[:2]
    assert Session.objects.get().next_position == 2
