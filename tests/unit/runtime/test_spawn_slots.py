"""How many runs of a tree are at work at once: which child begins, which awaits a slot, and what frees one."""

import asyncio
import json
from datetime import timedelta

import pytest
from django.db import transaction

from ravi_django import register, tool
from ravi_django.kernel import AgentId, SpawnBudget, SpawnDeniedError
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Ask, Run, Session, Status, uuid7
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import sizes
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, every_death, idle, in_background, leased, make_run, on_postgresql
from tests.support.trees import at_work, awaiting, awaits_slot, ended, root, spawn, suspended
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


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("priority", "others", "displaced"),
    [
        (BACKGROUND, [LOW, NORMAL], None), (LOW, [BACKGROUND, NORMAL], None), (NORMAL, [BACKGROUND, LOW], None),
        (HIGH, [NORMAL, LOW], 1), (HIGH, [BACKGROUND, LOW], 0), (HIGH, [HIGH, NORMAL], 1),
        (HIGH, [HIGH, CRITICAL], None), (HIGH, [NORMAL, NORMAL], 1),  # of equals the newest
        (CRITICAL, [HIGH, CRITICAL], 0), (CRITICAL, [HIGH, LOW], 1), (CRITICAL, [CRITICAL, CRITICAL], None),
    ],
)  # fmt: skip
def test_in_a_full_tree_high_and_critical_take_the_lowest_strictly_lower_slot(priority, others, displaced):
    lease = root(limit=3)
    runs = [spawn(lease, other) for other in others]
    child = spawn(lease, priority)
    assert [awaits_slot(run) for run in runs] == [place == displaced for place in range(2)]
    assert awaits_slot(child) is (displaced is None)
    assert at_work(lease) == 3
    assert (world.claim(child.id, "w") is None) is (displaced is None)


def test_a_run_that_awaits_a_slot_says_so():
    lease = root(limit=1)
    run = Run.objects.get(id=spawn(lease).id)
    assert (run.status, run.waits_for) == (Status.PENDING, {"kind": "slot", "name": "", "until": None})
    suspended(lease)
    run.refresh_from_db()
    assert (run.status, run.waits_for) == (Status.PENDING, None)


def test_neither_a_run_above_the_child_nor_one_that_is_being_cancelled_loses_its_slot():
    lease = root(limit=4)
    above = leased(spawn(lease, LOW))
    spawner = leased(spawn(above, LOW))
    beside = spawn(lease, NORMAL)
    child = spawn(spawner, HIGH)
    assert [run.id for run in awaiting(lease)] == [beside.id]
    Run.objects.filter(id=child.id).update(priority=CRITICAL)
    late = spawn(spawner, CRITICAL)
    assert [run.id for run in awaiting(lease)] == [beside.id, late.id]
    lease = root(limit=3)
    going, staying = spawn(lease, LOW), spawn(lease, NORMAL)
    leased(going)
    world.request_cancel(going.id, "enough")
    spawn(lease, HIGH)
    assert [run.id for run in awaiting(lease)] == [staying.id]


def test_no_run_loses_its_slot_where_the_tree_forbids_it():
    for forbidden in (True, False):
        lease = leased(make_run(budget={"max_agents": 2, **({"allow_preempt": False} if forbidden else {})}))
        low = spawn(lease, LOW)
        high = spawn(lease, CRITICAL)
        assert (awaits_slot(low), awaits_slot(high)) == (not forbidden, forbidden)


def test_the_limit_is_the_least_of_the_settings_and_the_roots_budget(settings):
    settings.RAVI = {**settings.RAVI, "MAX_AGENTS": 3}
    for lease, limit in ((root(limit=2), 2), (root(limit=9), 3)):
        for _ in range(4):
            spawn(lease)
        assert (at_work(lease), len(awaiting(lease))) == (limit, 5 - limit)


@pytest.mark.parametrize(("limits", "most"), [({}, 20), ({"MAX_TREE": 4}, 4), ({"MAX_TREE": 30}, 30)])
def test_a_tree_has_no_more_live_runs_than_ten_times_its_limit_or_the_setting(settings, limits, most):
    settings.RAVI = {**settings.RAVI, **limits}
    lease = root(limit=2)
    runs = [spawn(lease) for _ in range(most - 1)]
    with pytest.raises(SpawnDeniedError, match=f"the tree has {most} live runs, the limit is {most}"):
        spawn(lease, CRITICAL)
    cancel(runs[-1].id, "enough")
    spawn(lease)


@on_postgresql
@pytest.mark.parametrize("same_run", [True, False])
def test_of_two_that_race_for_the_last_slot_one_gets_it(same_run):
    for _ in range(15):
        lease = root(limit=3 if same_run else 4)
        others = [leased(spawn(lease)) for _ in range(1 if same_run else 2)]
        racers = [lease, lease] if same_run else others
        for future in [in_background(spawn, racer) for racer in racers]:
            future.result(BOUND_S)
        assert (at_work(lease), len(awaiting(lease))) == (3 if same_run else 4, 1)


@pytest.mark.sqlite
def test_the_roots_agent_limits_the_whole_tree(clock):
    async def nested(ctx, inbox):
        return [(await ctx.spawn(ADDRESS, "x")).run_id for _ in range(3)]

    async def story(ctx, inbox):
        await ctx.join(await ctx.spawn(AgentId("test", "nested"), "go"))

    child(stay)
    register(CodeAgent(nested, key="nested"))
    code(story).spawn_budget = SpawnBudget(max_agents=3, allow_preempt=False)
    run = drive(make_run())
    assert run.budget == {"max_agents": 3, "allow_preempt": False}
    drive(Run.objects.get(parent=run))
    assert len(Run.objects.filter(root=run, depth=2)) == 3 == len(Run.objects.filter(root=run, status="cancelled"))


def test_the_agents_limit_never_widens_the_budget():
    async def story(ctx, inbox):
        await ctx.spawn(ADDRESS, "x")
        await ctx.tool("look", run_id=ctx.run_id)

    @tool
    def look(run_id: str) -> str:
        """See whether the child has begun."""
        seen.append(Run.objects.get(parent=run_id).awaits_slot)
        return ""

    seen = []
    child(stay)
    code(story, tools=[look]).spawn_budget = SpawnBudget(max_agents=5)
    drive(make_run(budget={"max_agents": 1}))
    assert seen == [True]


def test_a_limit_below_the_root_is_for_its_agent_and_the_runs_below_it():
    lease = root(limit=20)
    for _ in range(5):
        spawn(lease)
    sub = leased(spawn(leased(spawn(lease))))
    tight, wide = SpawnBudget(max_agents=3), SpawnBudget(max_agents=4)
    made = [spawn(sub, allowed=tight) for _ in range(3)]
    assert [run.id for run in awaiting(lease)] == [made[2].id]
    assert ended(leased(made[0])) == [made[2].id]
    assert ended(leased(made[2])) == []
    upper = leased(spawn(lease))
    sub = leased(spawn(upper, allowed=wide))
    spawn(sub, allowed=tight)
    spawn(upper, allowed=wide)  # the wider limit above is reached first, by what others below it have started
    late = spawn(sub, allowed=tight)
    assert [run.id for run in awaiting(lease)] == [late.id]
    spawn(lease)
    assert [run.id for run in awaiting(lease)] == [late.id]


def test_a_high_child_takes_a_slot_below_the_run_whose_limit_is_reached():
    lease = root(limit=20)
    outside, sub = spawn(lease, BACKGROUND), leased(spawn(lease))
    low = spawn(sub, LOW, allowed=SpawnBudget(max_agents=2))
    spawn(sub, HIGH, allowed=SpawnBudget(max_agents=2))
    assert (awaits_slot(outside), awaits_slot(low)) == (False, True)


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


def leave(run, how):
    """Let a run of the tree leave its work, as its worker does or without one."""
    if how == "deadline":
        Run.objects.filter(id=run.id).update(deadline="2000-01-01T00:00:00Z")
        assert drive(run).error["type"] == "DeadlineExceeded"
    elif how in (Status.COMPLETED, Status.FAILED):
        ended(leased(run), how)
    elif how == Status.SUSPENDED:
        suspended(leased(run))
    elif how == Status.BLOCKED:
        world.journal_block(leased(run), [Entry("run.blocked", "@blocked.1")], error={"type": "Odd", "message": "odd"})
    else:
        lease = None if how == "cancelled while pending" else leased(run)
        cancel(run.id, "enough")
        if lease is not None:
            assert at_work(lease) == 2
            ended(lease, Status.CANCELLED)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "how",
    [
        *(Status.COMPLETED, Status.FAILED, Status.SUSPENDED, Status.BLOCKED, "deadline"),
        *("cancelled while pending", "cancelled while running"),
    ],
)
def test_every_way_out_of_work_gives_the_slot_away(how):
    child(stay)
    lease = root(limit=2)
    first, second, third = spawn(lease), spawn(lease), spawn(lease)
    leave(first, how)
    assert (awaits_slot(second), awaits_slot(third), at_work(lease)) == (False, True, 2)


def test_a_root_that_waits_gives_its_slot_away():
    lease = root(limit=1)
    first, second = spawn(lease), spawn(lease)
    assert suspended(lease) == [first.id]
    assert ended(leased(first)) == [second.id]


def test_an_asker_that_wakes_up_takes_the_slot_of_the_run_that_ends():
    lease = root(limit=1)
    first, second = spawn(lease), spawn(lease)
    cell = Ask(id=uuid7(), asker_id=lease.run_id, generation=0, path="1", target_id=first.id)
    world.open_ask(lease, [Entry("ask", "1", phase="started")], ask=cell, message=None)
    suspended(lease)
    assert ended(leased(first)) == [lease.run_id]
    assert (at_work(lease), awaits_slot(second)) == (1, True)


def test_the_end_of_a_run_frees_the_slots_of_all_below_it():
    lease = root(limit=4)
    above = leased(spawn(lease))
    for _ in range(2):
        spawn(above)
    beside = [spawn(lease) for _ in range(4)]
    world.finish(above, Status.FAILED, [Entry("run.failed", "@failed.1")], error={}, entangled=True)
    assert [run.id for run in awaiting(lease)] == [beside[3].id]


def test_a_run_that_awaits_a_slot_can_be_cancelled():
    lease = root(limit=2)
    spawn(lease), (late := spawn(lease))
    cancel(late.id, "enough")
    late.refresh_from_db()
    assert (late.status, late.awaits_slot, at_work(lease)) == (Status.CANCELLED, False, 2)


@on_postgresql
@pytest.mark.parametrize("leaves", [ended, suspended])
def test_of_ends_and_spawns_at_once_none_leaves_a_run_without_its_slot(leaves):
    for _ in range(15):
        lease = root(limit=3)
        first, second = leased(spawn(lease)), leased(spawn(lease))
        for _ in range(2):
            spawn(lease)
        racers = [in_background(leaves, first), in_background(leaves, second), in_background(spawn, lease)]
        for future in racers:
            future.result(BOUND_S)
        assert (at_work(lease), len(awaiting(lease))) == (3, 1)


@on_postgresql
def test_a_queued_run_that_another_transaction_has_locked_is_locked_in_the_order_of_ids():
    lease = root(limit=1)
    late = spawn(lease)
    Run.objects.filter(id=lease.run_id).update(status=Status.SUSPENDED)
    with transaction.atomic():
        Run.objects.select_for_update().get(id=late.id)
        with pytest.raises(world.NotLocked):
            in_background(_promote, lease.run_id).result(BOUND_S)
    assert _promote(lease.run_id) == [late.id]


def _promote(tree_id):
    with transaction.atomic():
        return world.slots_promote(tree_id, {tree_id})


@pytest.mark.parametrize("limit", [1, 2])
def test_a_parent_never_keeps_its_children_from_a_slot(clock, limit):
    """Three levels, of which each waits for the next, and one slot: no worker's death stops them."""

    async def below(ctx, inbox):
        depth = int(inbox[0].payload.message.text)
        if depth == 3:
            return "end"
        return " ".join([(await ctx.ask(ADDRESS, str(depth + 1))).result for _ in range(2)])

    def story(drive_and_die):
        run = drive_and_die(make_run(text="1", budget={"max_agents": limit}))
        return idle(run)

    child(below)
    code(below)
    for run, death in every_death(clock, story):
        assert run.output == "end end end end", death


def test_no_death_of_a_worker_at_an_end_loses_the_next_run(clock, step):
    async def short(ctx, inbox):
        await ctx.tool("step", name="1")

    def story(drive_and_die):
        lease = root(limit=2)
        first, later = spawn(lease), [spawn(lease) for _ in range(2)]
        drive_and_die(first)
        assert [run.id for run in awaiting(lease)] == [later[1].id]
        return first

    child(short).tools = [step]
    for run, _ in every_death(clock, story):
        assert run.status == Status.COMPLETED


def test_a_worker_that_dies_anywhere_spawns_each_child_once_and_displaces_one_run(clock, step):
    async def parent(ctx, inbox):
        low = await ctx.spawn(ADDRESS, "low", priority=LOW)
        high = await ctx.spawn(ADDRESS, "high", priority=HIGH)
        late = await ctx.spawn(ADDRESS, "late", priority=LOW)
        await ctx.tool("step", name="1")
        return [low.run_id, high.run_id, late.run_id]

    def story(drive_and_die):
        return drive_and_die(make_run(budget={"max_agents": 2}))

    child(stay)
    code(parent, tools=[step])
    for run, _ in every_death(clock, story):
        children = Run.objects.filter(parent=run).order_by("id")
        assert [str(one.id) for one in children] == json.loads(run.output)


@pytest.mark.parametrize("many", sizes(99, 499))
def test_a_long_queue_drains(clock, many):
    async def story(ctx, inbox):
        runs = await asyncio.gather(*(ctx.spawn(ADDRESS, str(number)) for number in range(many)))
        await asyncio.gather(*map(ctx.join, runs))
        return "done"

    async def short(ctx, inbox):
        return "short"

    child(short)
    code(story)
    run = make_run(budget={"max_agents": 50})
    run_until_idle(timeout=5 * BOUND_S)
    run.refresh_from_db()
    assert run.output == "done"
    assert Run.objects.filter(root=run, status=Status.COMPLETED, attempts=0, crashes=0).count() == many


@pytest.mark.parametrize(
    ("limits", "words", "runs"),
    [
        ({"MAX_DEPTH": 4}, "a run at depth 5 would be below the limit of 4", 5),
        ({"MAX_TREE": 6}, "the tree has 6 live runs, the limit is 6", 6),
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
