"""How many runs of a tree may live at once: who gets a slot, who is refused one, and what frees it."""

import asyncio
import json
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import register, signal
from ravi_django.kernel import AgentId, SpawnBudget, SpawnDeniedError
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run, Session, Status
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, every_death, idle, in_background, leased, make_run, on_postgresql
from tests.support.trees import ended, is_paused, paused, root, spawn, suspended
from tests.support.world import Entry, cancel

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = AgentId("test", "child")
LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL


async def stay(ctx, inbox):
    return await ctx.sleep_until_signal("go")


def child(function, **attributes):
    agent = CodeAgent(function, key="child")
    for name, value in attributes.items():
        setattr(agent, name, value)
    register(agent)
    return agent


BACKGROUND = Priority.BACKGROUND


@pytest.mark.parametrize(
    ("priority", "others", "gives_way"),
    [
        (BACKGROUND, [LOW, NORMAL], None), (LOW, [BACKGROUND, NORMAL], None), (NORMAL, [BACKGROUND, LOW], None),
        (HIGH, [NORMAL, LOW], 1), (HIGH, [BACKGROUND, LOW], 0), (HIGH, [HIGH, NORMAL], 1),
        (HIGH, [HIGH, CRITICAL], None), (HIGH, [NORMAL, NORMAL], 1),  # of equals the newest
        (CRITICAL, [HIGH, CRITICAL], 0), (CRITICAL, [HIGH, LOW], 1), (CRITICAL, [CRITICAL, CRITICAL], None),
    ],
)  # fmt: skip
def test_in_a_full_tree_high_and_critical_take_the_lowest_strictly_lower_slot(priority, others, gives_way):
    lease = root(limit=3)
    runs = [spawn(lease, other) for other in others]
    if gives_way is None:
        with pytest.raises(SpawnDeniedError, match="the tree has 3 live runs, the limit is 3"):
            spawn(lease, priority)
        assert Run.objects.filter(root_id=lease.run_id).count() == 2
    else:
        spawn(lease, priority)
    assert [is_paused(run) for run in runs] == [place == gives_way for place in range(2)]


def test_neither_the_spawner_nor_one_above_it_nor_one_that_is_to_be_cancelled_gives_way():
    lease = root(limit=4)
    above = leased(spawn(lease, LOW))
    spawner = leased(spawn(above, LOW))
    beside = spawn(lease, NORMAL)
    spawn(spawner, HIGH)
    with pytest.raises(SpawnDeniedError, match="none that could be paused has a priority below CRITICAL"):
        Run.objects.filter(priority=HIGH).update(priority=CRITICAL)
        spawn(spawner, CRITICAL)
    assert [run.id for run in paused(lease)] == [beside.id]
    lease = root(limit=3)
    going, staying = spawn(lease, LOW), spawn(lease, NORMAL)
    leased(going)
    world.request_cancel(going.id, "enough")
    spawn(lease, HIGH)
    assert [run.id for run in paused(lease)] == [staying.id]


def test_nobody_is_paused_where_the_tree_forbids_it():
    for forbidden in (True, False):
        lease = leased(make_run(budget={"max_agents": 2, **({"allow_preempt": False} if forbidden else {})}))
        low = spawn(lease, LOW)
        with pytest.raises(SpawnDeniedError) if forbidden else nullcontext():
            spawn(lease, CRITICAL)
        assert is_paused(low) is not forbidden


def test_the_limit_is_the_least_of_the_settings_and_the_roots_budget(settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 3}
    narrow, wide = root(limit=2), root(limit=9)
    spawn(narrow)
    for _ in range(2):
        spawn(wide)
    for lease, limit in ((narrow, 2), (wide, 3)):
        with pytest.raises(SpawnDeniedError, match=f"the limit is {limit}"):
            spawn(lease)


@on_postgresql
@pytest.mark.parametrize("same_run", [True, False])
def test_of_two_that_race_for_the_last_slot_one_gets_it(same_run):
    for _ in range(15):
        lease = root(limit=3 if same_run else 4)
        others = [leased(spawn(lease)) for _ in range(1 if same_run else 2)]
        racers = [lease, lease] if same_run else others
        outcomes = [in_background(_tries, racer) for racer in racers]
        assert sorted(future.result(BOUND_S) for future in outcomes) == ["denied", "granted"]
        assert world.slots_live(lease.run_id) == (3 if same_run else 4)


def _tries(lease):
    try:
        spawn(lease)
    except SpawnDeniedError:
        return "denied"
    return "granted"


@pytest.mark.sqlite
def test_the_roots_agent_limits_the_whole_tree(clock):
    async def nested(ctx, inbox):
        made = []
        for _ in range(3):
            try:
                made.append((await ctx.spawn(ADDRESS)).run_id)
            except SpawnDeniedError as error:
                return str(error)
        return made

    async def story(ctx, inbox):
        handle = await ctx.spawn(AgentId("test", "nested"), "go")
        return (await ctx.join(handle)).result

    child(stay)
    register(CodeAgent(nested, key="nested"))
    code(story).spawn_budget = SpawnBudget(max_agents=4, allow_preempt=False)
    run = idle(make_run())
    assert "the tree has 4 live runs, the limit is 4" in run.output
    assert run.budget == {"max_agents": 4, "allow_preempt": False}


def test_the_agents_limit_is_there_at_its_first_spawn_and_never_widens_the_budget():
    async def story(ctx, inbox):
        with pytest.raises(SpawnDeniedError, match="the limit is 1"):
            await ctx.spawn(ADDRESS)
        return "refused"

    child(stay)
    code(story).spawn_budget = SpawnBudget(max_agents=5)
    run = drive(make_run(budget={"max_agents": 1}))
    assert run.output == "refused"
    assert not Run.objects.filter(parent=run).exists()


def test_below_the_root_an_agent_only_tightens_for_itself_and_those_below_it():
    lease = root(limit=6)
    sub = leased(spawn(lease))
    tight = SpawnBudget(max_agents=3, allow_preempt=False)
    below = leased(spawn(sub, LOW, allowed=tight))
    spawn(below)
    for one, allowed in ((sub, tight), (below, None)):
        with pytest.raises(SpawnDeniedError, match="and those below it are 3 live runs, the limit is 3"):
            spawn(one, CRITICAL, allowed=allowed)
    spawn(lease)
    lease.run.refresh_from_db()
    assert lease.run.budget == {"max_agents": 6}


def test_for_a_limit_below_the_root_what_is_below_it_counts_and_for_each_limit_on_the_way_up():
    lease = root(limit=20)
    for _ in range(5):
        spawn(lease)
    sub = leased(spawn(leased(spawn(lease))))
    tight, wide = SpawnBudget(max_agents=3), SpawnBudget(max_agents=4)
    made = [spawn(sub, allowed=tight) for _ in range(2)]
    with pytest.raises(SpawnDeniedError, match=f"run {sub.run_id} and those below it are 3 live runs, the limit is 3"):
        spawn(sub, allowed=tight)
    ended(leased(made[0]))
    spawn(sub, allowed=tight)
    upper = leased(spawn(lease))
    sub = leased(spawn(upper, allowed=wide))
    spawn(sub, allowed=tight)
    spawn(upper, allowed=wide)  # the wider limit above is reached first, by what others below it have started
    with pytest.raises(SpawnDeniedError, match=f"run {upper.run_id} and those below it are 4 live runs"):
        spawn(sub, allowed=tight)


@on_postgresql
def test_a_limit_below_the_root_costs_one_query_a_spawn(django_assert_num_queries):
    lease = root(limit=20)
    sub = leased(spawn(leased(spawn(lease))))
    with CaptureQueriesContext(connection) as plain:
        spawn(sub)
    with django_assert_num_queries(len(plain) + 1):
        spawn(sub, allowed=SpawnBudget(max_agents=9))


def test_its_place_in_the_tree_is_told_to_every_run(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 30}
    told = []

    async def tell(ctx, inbox):
        told.append(ctx.meta)

    async def story(ctx, inbox):
        told.append(ctx.meta)
        await ctx.ask(await ctx.spawn(ADDRESS, "hi", priority=Priority.HIGH), "more")

    child(tell, spawn_budget=SpawnBudget(max_agents=7))
    code(story).spawn_budget = SpawnBudget(max_agents=9, allow_preempt=False)
    run = make_run(budget={"max_tokens": 5, "deadline_s": 60.0}, priority=Priority.LOW, tenant="acme")
    begun = clock.now
    run_until_idle()
    below = next(meta for meta in told if meta.supervision.depth)
    mine, its = told[0].supervision, below.supervision
    assert (mine.depth, mine.parent_id, mine.retention, mine.priority) == (0, None, "permanent", Priority.LOW)
    assert mine.spawn_budget == SpawnBudget(max_agents=9, allow_preempt=False)
    assert (its.depth, its.retention, its.priority) == (1, "run", Priority.HIGH)
    assert (its.root_id, its.parent_id) == (AgentId("test", "code"), AgentId("test", "code"))
    assert its.spawn_budget == SpawnBudget(max_agents=7, allow_preempt=False)
    assert (mine.execution_budget.max_tokens, its.execution_budget.max_tokens) == (5, 5)
    assert told[0].deadline == below.deadline == begun + timedelta(seconds=60)
    assert Run.objects.get(parent=run).deadline == begun + timedelta(seconds=60)
    assert Run.objects.get(parent=run).tenant == "acme"


def test_a_child_has_its_parents_priority_unless_another_is_given():
    async def story(ctx, inbox):
        for priority in (None, Priority.BACKGROUND, Priority.CRITICAL):
            await ctx.spawn(ADDRESS, "x", priority=priority)
        await ctx.spawn(ADDRESS, "x", priority="urgent")

    child(stay)
    code(story)
    run = drive(make_run(priority=Priority.HIGH))
    assert run.error["type"] == "InvalidInputError"
    assert "priority must be a Priority, not 'urgent'" in run.error["message"]
    made = Run.objects.filter(parent=run).order_by("id").values_list("priority", flat=True)
    assert list(made) == [Priority.HIGH, Priority.BACKGROUND, Priority.CRITICAL]


def end(lease, run, how):
    """End a run of the tree, and look at its slot where its worker has to see the end first."""
    if how == "deadline":
        Run.objects.filter(id=run.id).update(deadline="2000-01-01T00:00:00Z")
        assert drive(run).error["type"] == "DeadlineExceeded"
    elif how in (Status.COMPLETED, Status.FAILED):
        ended(leased(run), how)
    else:
        its = None if how == "cancelled while pending" else leased(run)
        if how == "cancelled while suspended":
            suspended(its)
        elif how == "cancelled while blocked":
            world.journal_block(its, [Entry("run.blocked", "@blocked.1")], error={"type": "Odd", "message": "odd"})
            assert world.slots_live(lease.run_id) == 2
        cancel(run.id, "enough")
        if how == "cancelled while running":
            assert world.slots_live(lease.run_id) == 2
            ended(its, Status.CANCELLED)


@pytest.mark.parametrize(
    "how",
    [
        *(Status.COMPLETED, Status.FAILED, "deadline"),
        *(f"cancelled while {status}" for status in ("pending", "running", "suspended", "blocked")),
    ],
)
def test_every_ending_frees_the_slot(how):
    child(stay)
    lease = root(limit=2)
    first = spawn(lease)
    with pytest.raises(SpawnDeniedError):
        spawn(lease)
    end(lease, first, how)
    assert world.slots_live(lease.run_id) == 1
    spawn(lease)


def test_the_end_of_a_run_frees_the_slots_of_all_below_it():
    lease = root(limit=4)
    above = leased(spawn(lease))
    for _ in range(2):
        spawn(above)
    assert world.slots_live(lease.run_id) == 4
    world.finish(above, Status.FAILED, [Entry("run.failed", "@failed.1")], error={}, entangled=True)
    assert world.slots_live(lease.run_id) == 1


def test_a_worker_that_dies_anywhere_takes_one_slot_and_pauses_one_run(clock, step):
    async def parent(ctx, inbox):
        low = await ctx.spawn(ADDRESS, "low", priority=Priority.LOW)
        high = await ctx.spawn(ADDRESS, "high", priority=Priority.HIGH)
        denied = await asyncio.gather(ctx.spawn(ADDRESS, "x"), return_exceptions=True)
        await ctx.tool("step", name="1")
        await ctx.sleep_until_signal("go")
        return [low.run_id, high.run_id, str(denied[0])]

    def story(drive_and_die):
        run = drive_and_die(make_run(budget={"max_agents": 2}))
        signal(run.id, "go")
        return drive_and_die(run)

    child(stay)
    code(parent, tools=[step])
    for run, _ in every_death(clock, story):
        low, high, denied = json.loads(run.output)
        assert denied.startswith("the tree has 2 live runs, the limit is 2")
        assert {str(one.id) for one in Run.objects.filter(parent=run)} == {low, high}
        assert [entry.kind for entry in journal_of(low)].count("run.paused") == 1
        assert not any(entry.kind == "run.paused" for entry in journal_of(high))


@pytest.mark.parametrize(
    ("limits", "words", "runs"),
    [
        ({"MAX_DEPTH": 4}, "a run at depth 5 would be below the limit of 4", 5),
        ({"MAX_AGENTS": 6}, "the tree has 6 live runs, the limit is 6", 6),
    ],
)
def test_a_recursion_without_an_end_is_stopped_with_a_clear_error(settings, limits, words, runs):
    settings.RAVI = {**settings.RAVI, **limits}
    told = []

    async def again(ctx, inbox):
        try:
            answer = await ctx.ask(AgentId("test", "code"), "again")
        except SpawnDeniedError as error:
            told.append(str(error))
            raise
        return {"kind": answer.kind, "result": answer.result}

    code(again)
    run = idle(make_run())
    assert told and all(words in one for one in told)
    assert run.status == Status.COMPLETED
    assert "target_failed" in run.output
    assert Run.objects.filter(session__in=Session.objects.all()).count() == runs
    assert not Run.objects.exclude(status__in=[Status.COMPLETED, Status.FAILED]).exists()
    deepest = Run.objects.order_by("-depth").first()
    assert deepest.error["type"] == "SpawnDeniedError"
    assert words in deepest.error["message"]
