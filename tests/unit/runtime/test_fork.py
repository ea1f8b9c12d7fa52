"""A fork shares a run's past by copy, and lives on alone."""

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import (
    ChatMessage,
    ConflictError,
    InvalidInputError,
    ModelError,
    Role,
    RunContext,
    SpawnBudget,
    ToolUseBlock,
    Usage,
)
from ravi_django.models import InboxMessage, JournalEntry, Run, Session, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.cases import case, refused
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, in_background, leased, make_run, message, on_postgresql
from tests.support.trees import ended, spawn
from tests.support.world import Entry, NewTurn, cancel, fork, retry

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


def quietly(run, after_seq):
    """Forked, and no worker told."""
    return fork(run.id, after_seq, send=lambda run_id: None)


def state(run):
    """Everything of a run that a fork must leave as it is."""
    return (
        Run.objects.filter(id=run.id).values().get(),
        list(JournalEntry.objects.filter(run_id=run.id).order_by("seq").values()),
        list(InboxMessage.objects.filter(run_id=run.id).order_by("id").values()),
        list(Turn.objects.filter(session_id=run.session_id).order_by("position").values()),
        Session.objects.filter(id=run.session_id).values().get(),
    )


def paths(run):
    return [(row.seq, row.path, row.attempt, row.phase) for row in journal_of(run) if not row.path.startswith("@")]


def written(*entries, run=None):
    """A run whose journal has these rows, from seq 1 on, under its first lease."""
    lease = leased(run)
    for entry in entries:
        world.append(lease, [entry])
    return Run.objects.get(id=lease.run_id)


def started(path, kind="tool.call", **fields):
    return Entry(kind, path, "t", phase="started", **fields)


def result(path, kind="tool.call", **fields):
    return Entry(kind, path, "t", **fields)


@pytest.mark.parametrize(
    ("rows", "after_seq", "point"),
    [
        ([result("1"), result("2"), result("3")], 2, 2),
        ([result("1"), started("2"), result("2"), result("3")], 2, 1),
        ([result("1"), started("2"), result("2"), result("3")], 3, 3),
        ([result("1"), started("2"), result("3"), result("2"), result("4")], 3, 1),
        ([started("1"), started("2"), result("1"), result("2")], 3, 0),
        ([result("1"), started("2", "ask"), result("3"), result("2", "ask")], 3, 1),
        ([result("1"), Entry("tool.call", "2", "t", phase="paused"), result("2")], 2, 1),
        ([result("1"), started("2"), started("2", attempt=2), result("2", attempt=2)], 3, 1),
        ([result("1"), started("2")], 2, 1),
        ([started("1")], 1, 0),
    ],
)
def test_the_past_ends_at_the_nearest_place_where_nothing_was_open(rows, after_seq, point):
    run = written(*rows)
    forked = quietly(run, after_seq)
    assert (forked.forked_from, forked.fork_seq, forked.next_seq) == (run.id, point, point + 2)
    assert paths(forked) == paths(run)[:point]


def test_the_end_of_a_run_is_not_shared_and_what_a_retry_superseded_counts_as_open():
    run = written(result("1"))
    world.finish(leased_again(run), Status.COMPLETED, [result("2"), Entry("run.completed", "@completed.1")])
    assert quietly(run, 3).fork_seq == 2
    error = {"type": "E", "message": "m"}
    run = written(result("1"), started("2"), result("2", error=error))
    world.finish(leased_again(run), Status.FAILED, [Entry("run.failed", "@failed.1", error=error)], error=error)
    world.store_retry(run.id)
    assert [quietly(run, seq).fork_seq for seq in (5, 4)] == [3, 3]


def leased_again(run):
    return world.Lease(run, run.lease_epoch, run.lease_owner)


def test_a_message_that_came_later_is_not_part_of_the_past():
    run = written(result("1"), result("2"))
    InboxMessage.objects.create(run=run, message_id="late", body=message("late"))
    assert InboxMessage.objects.filter(run=quietly(run, 2)).count() == 1


def test_messages_that_had_come_come_along_and_later_ones_do_not(clock):
    run = make_run(deadline=clock.now + timedelta(seconds=10))
    first = InboxMessage.objects.get(run=run)
    second = InboxMessage.objects.create(run=run, message_id="m2", body=message("more"))
    run = written(result("1", read_upto=first.id), result("2", read_upto=second.id), run=run)
    sent = []
    forked = fork(run.id, 2, send=sent.append)
    mine = list(InboxMessage.objects.filter(run=forked).order_by("id"))
    assert [(one.message_id, one.body) for one in mine] == [(one.message_id, one.body) for one in (first, second)]
    assert [row.read_upto for row in journal_of(forked)[:2]] == [one.id for one in mine]
    assert (sent, forked.deadline) == ([forked.id], run.deadline)
    clock.advance(10)
    assert quietly(run, 1).deadline is None


def test_a_bad_place_is_refused_and_nothing_is_written():
    run = written(result("1"), result("2"), result("3"))
    for after_seq in (0, -1, True, "2", 2.0, None, 4, 10**30):
        with case(after_seq), refused("after_seq"):
            quietly(run, after_seq)
    assert (Run.objects.count(), Session.objects.count()) == (1, 1)
    with refused("after_seq", "which has 0, not 1"):
        quietly(make_run(), 1)


def test_an_earlier_generation_is_no_place():
    run = written(result("1"), result("2"))
    lease = leased_again(run)
    world.continue_as_new(lease, [Entry("run.continued", "@continued.1")], state=None, read_upto=0)
    run = written(result("1"), run=run)
    with pytest.raises(InvalidInputError, match=r"after_seq 3 is in an earlier generation .* begins with entry 4"):
        quietly(run, 3)
    forked = quietly(run, 4)
    assert (forked.generation, forked.fork_seq) == (1, 4)
    assert [row.generation for row in journal_of(forked)] == [0, 0, 0, 1, 1]


def test_it_is_a_root_of_its_own_with_what_was_given_to_the_source(clock, django_user_model):
    user = django_user_model.objects.create_user("ann")
    root = make_run()
    budget, metadata = {"max_turns": 9}, {"a": 1}
    run = make_run(
        owner=user, tenant="acme", priority=4, budget=budget, metadata=metadata, parent=root, root=root, depth=1
    )
    written(result("1"), run=run)
    run = Run.objects.get(id=run.id)
    forked = quietly(run, 1)
    kept = ("agent", "owner_id", "tenant", "priority", "budget", "metadata", "generation", "release")
    assert [getattr(forked, name) for name in kept] == [getattr(run, name) for name in kept]
    assert (forked.root_id, forked.parent_id, forked.depth, forked.status) == (None, None, 0, Status.PENDING)
    assert (forked.session.owner, forked.session.tenant, forked.session.parent_session) == (user, "acme", None)
    assert forked.session_id != run.session_id
    assert (forked.started_at, forked.finished_at, forked.created_at) == (None, None, clock.now)


def test_usage_and_cost_are_those_of_the_shared_rows():
    def called(path, tokens, cost):
        usage = Usage(input_tokens=tokens, cached_tokens=1, output_tokens=2 * tokens, reasoning_tokens=3)
        return Entry("llm.call", path, "m", usage=usage, cost=cost)

    run = written(called("1", 10, 0.5), called("2", 5, 0.25), called("3", 1, None))
    two, three = quietly(run, 2), quietly(run, 3)
    sums = (two.input_tokens, two.cached_tokens, two.output_tokens, two.reasoning_tokens, float(two.cost))
    assert sums == (15, 2, 30, 6, 0.75)
    assert (two.cost_unknown, three.cost_unknown, three.input_tokens) == (False, True, 16)


def test_big_values_are_shared(monkeypatch):
    world.patch(monkeypatch, "INLINE_BYTES", 10)
    run = written(result("1", result={"text": "x" * 100}))
    forked = quietly(run, 1)
    assert journal_of(forked)[0].result == {"text": "x" * 100}
    assert "$blob" in JournalEntry.objects.get(run=forked, seq=1).result


def test_messages_are_given_in_the_same_batches(clock, step):
    """One that comes while the code works is the next batch; the ids that say so are the source's."""
    given = []

    async def work(ctx, inbox):
        given.append([one.payload.message.text for one in inbox])
        if ctx.run_id == str(run.id) and len(given) == 1:
            await sync_to_async(InboxMessage.objects.create)(run_id=ctx.run_id, message_id="m2", body=message("more"))
            await sync_to_async(world.touch)([run.id])
            await sync_to_async(connections.close_all)()
        await ctx.tool("step", name=str(len(inbox)))
        return "done"

    code(work, tools=[step])
    run = make_run()
    make_run("test/other")  # its message's id lies between the source's and the fork's
    drive(run)
    drive(run)
    assert (run.status, given) == (Status.COMPLETED, [["hi"], ["hi"], ["more"]])
    given.clear()
    forked = drive(quietly(run, run.next_seq - 1))
    assert (forked.status, given) == (Status.COMPLETED, [["hi"], ["more"]])


@pytest.mark.parametrize("status", [Status.RUNNING, Status.BLOCKED, Status.COMPLETED])
def test_the_source_stays_as_it_is_whatever_its_status(status):
    async def nothing(ctx, inbox):
        return "done"

    run = written(result("1"), result("2"))
    Run.objects.filter(id=run.id).update(status=status)
    before = state(run)
    code(nothing)
    drive(quietly(run, 1))
    assert state(run) == before


@on_postgresql
def test_the_source_does_not_grow_while_it_is_copied(monkeypatch):
    """A worker's append waits for the copy, which sees one state of the journal."""
    run = written(result("1"))
    lease = leased_again(run)
    with transaction.atomic():
        forked = world.store_fork(run.id, 1)
        appended = in_background(world.append, lease, [result("2")])
        with pytest.raises(TimeoutError):
            appended.result(0.3)
    assert appended.result(BOUND_S) == 2
    assert len(paths(forked)) == 1


@pytest.mark.sqlite
def test_the_shared_past_is_not_done_again_and_the_rest_is_its_own(clock, ran, step):
    async def work(ctx, inbox):
        one = await ctx.llm([USER])
        await ctx.tool("step", name=one.text)
        two = await ctx.llm([USER, USER])
        await ctx.tool("step", name=two.text)
        return two.text

    answers = iter(["one", "two", "another"])
    code(work, model=ScriptedModel([lambda messages, options: next(answers)]), tools=[step])
    run = drive(make_run())
    assert (run.output, ran) == ("two", ["one", "two"])
    forked = drive(quietly(run, 3))
    assert (forked.status, forked.output) == (Status.COMPLETED, "another")
    assert ran == ["one", "two", "another"]
    assert [row.seq for row in journal_of(forked)] == list(range(1, forked.next_seq))
    assert paths(forked)[:2] == paths(run)[:2]
    assert Run.objects.get(id=run.id).output == "two"


def test_an_effect_that_was_open_is_done_by_the_fork_itself(clock, ran):
    @tool(effect="at_most_once")
    async def pay(name: str) -> str:
        ran.append(name)
        return name

    async def work(ctx, inbox):
        await ctx.tool("pay", name="a")
        await ctx.tool("pay", name="b")
        return "done"

    code(work, tools=[pay])
    run = drive(make_run())
    begun = next(row.seq for row in journal_of(run) if row.phase == "started" and row.path == "2")
    forked = drive(quietly(run, begun))
    assert (forked.status, ran) == (Status.COMPLETED, ["a", "b", "b"])


@pytest.fixture
def keys():
    return []


@pytest.fixture
def draws(keys):
    """What a run draws, in the order of its code."""
    drawn = []

    @tool
    async def keep(name: str, ctx: RunContext) -> str:
        keys.append(ctx.idempotency_key)
        return name

    async def work(ctx, inbox):
        for place in range(4):
            values = (ctx.random(), ctx.uuid(), ctx.idempotency_key)
            drawn.append(values)
            await ctx.tool("keep", name=f"{place} {values[0]} {values[1]} {values[2]}")
        return "done"

    def driven(run):
        drawn.clear()
        assert drive(run).status == Status.COMPLETED, run.error
        return list(drawn)

    code(work, tools=[keep])
    return driven


def test_what_derives_from_the_runs_id_is_the_sources_in_the_past_and_new_after_it(clock, keys, draws):
    run = make_run()
    source = draws(run)
    found, outliving = draws(quietly(run, 3)), quietly(run, 3)  # run.started and two tools
    assert found[:2] == source[:2]
    for place in (2, 3):
        assert [a != b for a, b in zip(found[place], source[place], strict=True)] == [True, True, True]
    assert len(keys) == len(set(keys)) == 6
    Run.objects.filter(id=run.id).delete()
    assert draws(outliving)[:2] == source[:2]


def test_a_fork_of_a_fork_has_each_part_from_the_run_that_recorded_it(clock, draws):
    first = make_run()
    a = draws(first)
    second = quietly(first, 2)  # one tool is shared
    b = draws(second)
    third_tool = [row.seq for row in journal_of(second) if row.kind == "tool.call"][2]
    third = quietly(second, third_tool)
    c, early = draws(third), draws(quietly(second, 2))
    assert (c[0], c[1:3], early[0]) == (a[0], b[1:3], a[0])
    assert c[3] not in (a[3], b[3])
    assert early[1] not in (a[1], b[1], c[1])
    origins = JournalEntry.objects.filter(run=third, kind="run.forked").latest("seq").result["origins"]
    assert origins == [[2, str(first.id)], [third_tool, str(second.id)]]


def test_a_fork_can_fail_and_be_retried(clock):
    left = ["fine", "the source's", ModelError("no", type="E"), "fixed"]

    async def work(ctx, inbox):
        await ctx.llm([USER])
        return (await ctx.llm([USER])).text

    code(work, model=ScriptedModel([lambda messages, options: left.pop(0)]))
    forked = drive(quietly(drive(make_run()), 2))
    assert forked.status == Status.FAILED
    retry(forked.id, send=lambda run_id: None)
    drive(forked)
    assert (forked.status, forked.output, left) == (Status.COMPLETED, "fixed", [])


def memory(*script, tools=()):
    context = ContextConfig(DjangoHistoryProvider())
    return world.register(ReActAgent("memory", model=ScriptedModel(list(script)), tools=list(tools), context=context))


def said(session_id):
    return [
        (turn.position, turn.role, turn.blocks[0].get("text", ""))
        for turn in Turn.objects.filter(session_id=session_id).order_by("position")
    ]


def test_it_has_read_the_conversation_before_it_and_adds_its_own_turns(clock, step):
    call = ToolUseBlock(tool_name="step", arguments={"name": "x"}, call_id="c1")
    memory("first")
    one = drive(make_run("react/memory", text="one"))
    memory(call, "second", tools=[step])
    two = drive(make_run("react/memory", text="two", session=one.session))
    memory("third")
    drive(make_run("react/memory", text="three", session=one.session))
    before = said(one.session_id)
    called = next(row.seq for row in journal_of(two) if row.kind == "tool.call")
    model = memory(call, "another", tools=[step]).model
    forked = drive(quietly(two, called))
    assert (forked.status, forked.output) == (Status.COMPLETED, "another")
    assert [said.text for said in model.calls[0].messages if said.role is Role.USER] == ["one", "two"]
    assert said(one.session_id) == before
    assert said(forked.session_id) == [
        (0, "user", "one"),
        (1, "assistant", "first"),
        (2, "user", "two"),
        (3, "assistant", ""),
        (4, "tool", ""),
        (5, "assistant", "another"),
    ]
    assert not JournalEntry.objects.filter(run=forked, kind="replay.drift").exists()
    assert Session.objects.get(id=forked.session_id).next_position == 6


def turned(session, *texts, agent="test/code"):
    """A run that has ended, with these turns."""
    run = make_run(agent, session=session)
    lease = leased(run)
    turns = [NewTurn(session.id, "test/code", ChatMessage.of(Role.USER, text)) for text in texts]
    world.append(lease, [result("1")], turns)
    world.finish(lease, Status.COMPLETED, [])
    return run


def test_turns_after_its_own_first_are_not_copied():
    session = world.create_session(Session(agent="test/code"))
    first, run, _ = (turned(session, text) for text in ("one", "mine", "later"))
    forked = quietly(run, 1)
    assert [text for _, _, text in said(forked.session_id)] == ["one"]
    assert (forked.session.next_position, forked.next_turn) == (1, 0)
    copied = Turn.objects.get(session=forked.session)
    assert (copied.run_id, copied.index, copied.position, copied.agent) == (first.id, None, 0, "test/code")


def test_a_run_without_turns_could_read_up_to_where_it_read_last(clock):
    session = world.create_session(Session(agent="test/code"))
    turned(session, *"01234")
    read = Entry("history.read", "1", result={"position": 3, "count": 3, "digest": "d"})
    reader = written(read, result("2"), run=make_run("test/a", session=session))
    other = written(result("1"), run=make_run("test/b", session=session))
    clock.advance(60)
    turned(session, "late", agent="test/c")
    assert len(said(quietly(reader, 2).session_id)) == 3
    assert len(said(quietly(other, 1).session_id)) == 5


async def two_steps(ctx, inbox):
    await ctx.tool("step", name="one")
    await ctx.tool("step", name="two")
    return "done"


def stream(run):
    found, done = world.events_page(run.id)
    return [frame["seq"] for frame in found], [(frame["type"], frame.get("step")) for frame in found], done


def test_its_stream_begins_with_the_shared_past_and_is_without_a_gap(clock, step):
    code(two_steps, tools=[step])
    run = drive(make_run())
    forked, cancelled = quietly(run, 2), quietly(run, 2)
    assert stream(forked) == ([1, 2], [("progress", "started"), ("progress", "tool_result")], False)
    drive(forked)
    cancel(cancelled.id, "never mind")
    for one in (forked, cancelled):
        numbers, types, done = stream(one)
        assert done
        assert numbers == list(range(1, len(numbers) + 1))
        assert types.count(("progress", "started")) == 1
        assert types[-1] == ("stream.done", None)
        assert {frame["run"] for frame in world.events_page(one.id)[0]} == {str(one.id)}
    assert stream(forked)[1][-3:-1] == [("progress", "tool_result"), ("progress", "done")]


def test_without_the_past_its_stream_begins_at_one_all_the_same(clock, step, monkeypatch):
    def away(run):
        raise ConnectionError("no buffer")

    world.patch(monkeypatch, "publish_past", away)
    code(two_steps, tools=[step])
    forked = drive(quietly(drive(make_run()), 2))
    numbers, types, done = stream(forked)
    assert done
    assert numbers == list(range(1, len(numbers) + 1))
    assert ("stream.gap", None) not in types


def test_a_pruned_run_has_no_past_to_share():
    run = written(result("1"))
    JournalEntry.objects.filter(run=run).delete()
    with pytest.raises(ConflictError, match=f"the journal of run {run.id} was pruned"):
        quietly(run, 1)


@pytest.mark.parametrize("allowed", [2, 5, None])
def test_a_fork_from_within_a_tree_keeps_the_limits_of_the_tree_and_its_own(allowed):
    top = leased(make_run(budget={"max_tokens": 1000, "max_agents": 4, "allow_preempt": False}))
    middle = leased(spawn(top))
    low = spawn(middle, allowed=None if allowed is None else SpawnBudget(max_agents=allowed))
    lease = leased(Run.objects.get(id=low.id))
    world.append(lease, [Entry("log", "1", result={})])
    ended(lease)
    new = quietly(low, 1)
    assert (new.root_id, new.parent_id) == (None, None)
    assert new.budget == {"max_tokens": 1000, "max_agents": min(allowed or 4, 4), "allow_preempt": False}
