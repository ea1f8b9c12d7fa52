"""A budget is the whole tree's: reserved before a model call, settled with its row, exact after any crash."""

import asyncio
from datetime import date
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import register, signal
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    BudgetExhaustedError,
    GenerationOptions,
    LeaseLostError,
    ModelError,
    TransientError,
)
from ravi_django.models import BudgetAccount, JournalEntry, Reservation, Run, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.budgets import USER, balances, lost, model, reserved, spent
from tests.support.runs import (
    BOUND_S,
    CodeAgent,
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    take_over,
)
from tests.support.world import Entry, fork, retry

pytestmark = pytest.mark.django_db(transaction=True)

CHILD = AgentId("test", "child")
TODAY = date(2026, 11, 22)


def calls(count: int, **how):
    """An agent that calls the model so often and says how often it could."""

    async def story(ctx, inbox):
        made = 0
        try:
            for _ in range(count):
                await ctx.llm([USER], **how)
                made += 1
        except BudgetExhaustedError as error:
            return f"{made}: {error}"
        return str(made)

    return story


def delegating(children: int, calls_each: int, mine: int = 1):
    """A root that calls the model, then has children that do."""
    register(CodeAgent(calls(calls_each), key="child", model=model(7, 0.25)))

    async def story(ctx, inbox):
        for _ in range(mine):
            await ctx.llm([USER])
        handles = [await ctx.spawn(CHILD, "go") for _ in range(children)]
        return [(await ctx.join(handle)).result for handle in handles]

    return code(story, model=model(10, 0.5))


def drive_tree(root: Run) -> Run:
    for _ in range(50):
        waiting = Run.objects.filter(status=Status.PENDING).order_by("id")
        if not waiting:
            break
        for run in waiting:
            drive(run)
    root.refresh_from_db()
    return root


@pytest.mark.parametrize(
    ("budget", "made", "words"),
    [
        ({"max_tokens": 25}, 3, "30 of its max_tokens of 25"),
        ({"max_turns": 2}, 2, "2 of its max_turns of 2"),
        ({"max_cost_usd": 1.25}, 3, "1.5 of its max_cost_usd of 1.25"),
        ({"max_cost_usd": 0}, 0, "0 of its max_cost_usd of 0"),
    ],
)
def test_a_budget_is_overspent_by_at_most_one_call(budget, made, words):
    code(calls(9), model=model(10, 0.5))
    run = drive(make_run(budget=budget))
    assert run.output == f"{made}: the run has used {words}; submit it with a larger budget"
    assert balances(run)


def test_a_refusal_is_recorded_and_told_to_every_replay():
    async def story(ctx, inbox):
        said = await calls(2)(ctx, inbox)
        await ctx.sleep_until_signal("go")
        return said

    code(story, model=model())
    run = drive(make_run(budget={"max_turns": 1}))
    BudgetAccount.objects.update(max_turns=9)
    signal(run.id, "go")
    run = drive(run)
    assert run.output.startswith("1: the run has used 1 of its max_turns of 1")
    refusal = JournalEntry.objects.get(run=run, kind="llm.call", error__isnull=False)
    assert (refusal.error["type"], refusal.error["account"]) == ("BudgetExhaustedError", f"tree:{run.id}")
    assert refusal.input_tokens is None


def test_calls_that_fit_together_are_made_together():
    under_way = []

    async def together(messages, options):
        under_way.append(asyncio.Event())
        if len(under_way) == 4:
            for one in under_way:
                one.set()
        await asyncio.wait_for(under_way[-1].wait(), BOUND_S)
        return "fine"

    async def story(ctx, inbox):
        options = GenerationOptions(max_tokens=10)
        await asyncio.gather(*(ctx.llm([USER], options=options) for _ in range(4)))

    code(story, model=ScriptedModel([together], loop=True))
    run = drive(make_run(budget={"max_tokens": 1000, "max_turns": 4}))
    assert (run.status, len(under_way)) == (Status.COMPLETED, 4)
    assert balances(run)

    async def waiting(ctx, inbox):
        await asyncio.gather(*(ctx.llm([USER]) for _ in range(3)))

    made = model(10)  # each call reserves 4,096 tokens of 5,000, uses 10, and waits for what another may not use
    code(waiting, model=made)
    run = drive(make_run(budget={"max_tokens": 5_000}))
    assert (run.status, len(made.calls)) == (Status.COMPLETED, 3)
    assert balances(run)


def test_who_waits_for_room_is_cancelled_at_once(clock):
    run = make_run(budget={"max_turns": 1})

    async def story(ctx, inbox):
        with pytest.raises(BudgetExhaustedError):
            await asyncio.gather(ctx.llm([USER]), ctx.llm([USER]))

    async def forever(messages, options):
        await asyncio.wrap_future(in_background(world.cancel, run.id, "enough"))
        engines[0].cancel_run(run.id)
        await asyncio.sleep(60)

    engines = []
    code(story, model=ScriptedModel([forever], loop=True))
    run = drive(run, setup=engines.append)
    assert run.status == Status.CANCELLED
    assert balances(run)


def test_a_call_that_is_given_up_holds_nothing():
    """Else the next one would wait for it until the lease's end, which does not come before."""

    async def story(ctx, inbox):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ctx.llm([USER])
        async with asyncio.timeout(30):
            return (await ctx.llm([USER])).text

    said = []

    async def forever_once(messages, options):
        said.append(len(said))
        if len(said) == 1:
            await asyncio.sleep(60)
        return "fine"

    code(story, model=ScriptedModel([forever_once], loop=True))
    run = drive(make_run(budget={"max_turns": 1}))
    assert (run.status, run.output) == (Status.COMPLETED, "fine")
    assert balances(run)


def test_a_call_that_fails_frees_what_it_held_and_counts_as_a_turn_unless_it_is_tried_later():
    async def story(ctx, inbox):
        for _ in range(2):
            with pytest.raises(ModelError):
                await ctx.llm([USER])

    code(story, model=ScriptedModel([ModelError("no")], loop=True))
    run = drive(make_run(budget={"max_turns": 3}))
    assert run.status == Status.COMPLETED, run.error
    assert spent(run) == (0, Decimal(0), 2)
    assert balances(run)
    code(calls(1), model=ScriptedModel([TransientError("later")]))
    run = drive(make_run(budget={"max_tokens": 100}))
    assert run.status == Status.PENDING
    assert reserved(run) == (0, Decimal(0), 0)


@pytest.mark.parametrize(("dies", "written"), [(1, False), (2, True), (3, False)])
def test_a_takeover_settles_what_the_dead_worker_had_reserved(clock, dies, written):
    code(calls(3), model=model(10, 0.5))
    run = drive(make_run(budget={"max_tokens": 100_000, "max_cost_usd": 100.0}), dies=dies, written=written)
    assert reserved(run)[2] == (0 if written else 1)
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "3")
    assert spent(run)[2] == 3 + lost(run) == (3 if written else 4)
    assert balances(run)


@pytest.mark.parametrize("is_driven", [True, False])
def test_what_a_dead_worker_had_reserved_is_freed_though_nobody_asks_for_it_any_more(clock, is_driven):
    code(calls(1), model=model())
    run = drive(make_run(budget={"max_turns": 5}), dies=1)
    code(calls(0))
    if not is_driven:  # it has crashed too often
        Run.objects.filter(id=run.id).update(crashes=conf.MAX_ATTEMPTS)
    run = take_over(clock, run)
    assert run.status == (Status.COMPLETED if is_driven else Status.BLOCKED)
    assert reserved(run) == (0, Decimal(0), 0)
    assert balances(run) or not is_driven


def test_a_zombie_reserves_nothing():
    run = make_run(budget={"max_turns": 5})
    lease = leased(run)
    Run.objects.filter(id=run.id).update(lease_epoch=lease.epoch + 1)
    with pytest.raises(LeaseLostError):
        world.reserve(lease, "1", world.Amount(1, Decimal(0)), TODAY)
    assert not Reservation.objects.exists()


@pytest.mark.sqlite
def test_a_trees_calls_are_paid_by_one_account():
    delegating(children=3, calls_each=2)
    root = drive_tree(make_run(budget={"max_tokens": 1000}))
    assert (root.status, root.output) == (Status.COMPLETED, '["2","2","2"]')
    assert spent(root) == (10 + 6 * 7, Decimal("2.0"), 7)
    assert balances(root)
    assert BudgetAccount.objects.count() == 1


def test_a_child_has_no_budget_of_its_own():
    delegating(children=2, calls_each=5)
    root = drive_tree(make_run(budget={"max_turns": 4}))
    told = f"the tree of run {root.id} has used 4 of its max_turns of 4; submit it with a larger budget"
    assert root.output == f'["3: {told}","0: {told}"]'
    assert balances(root)


def test_runs_of_a_tree_that_are_cancelled_leave_nothing_behind(clock):
    delegating(children=2, calls_each=2)
    root = drive(make_run(budget={"max_tokens": 1000}))
    drive(Run.objects.filter(parent=root).first(), dies=1)
    world.cancel(root.id, "enough")
    clock.advance(conf.LEASE_S + 1)
    for run in Run.objects.filter(status=Status.RUNNING):
        drive(run)
    assert set(Run.objects.values_list("status", flat=True)) == {Status.CANCELLED}
    assert balances(root)


def test_a_retry_goes_on_with_what_is_left():
    async def story(ctx, inbox):
        for _ in range(2):
            await ctx.llm([USER])

    code(story, model=model(10))
    run = drive(make_run(budget={"max_turns": 1}))
    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    retry(run.id)
    run = drive(run)
    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    assert spent(run) == (10, Decimal(0), 1)
    assert balances(run)


def test_a_fork_is_a_tree_of_its_own_in_which_the_copied_past_counts():
    code(calls(4), model=model(10, 0.5))
    source = drive(make_run(budget={"max_turns": 3}))
    first = JournalEntry.objects.filter(run=source, kind="llm.call").order_by("seq")[1].seq
    copy = drive(fork(source.id, first))
    assert copy.output.startswith("3: the run has used 3 of its max_turns of 3")
    assert spent(copy) == (30, Decimal("1.5"), 3)
    assert balances(copy)
    assert balances(source)


def test_what_is_reserved_is_the_known_price_or_what_the_model_used_at_most(settings):
    def estimate(name, **options):
        model = ScriptedModel("x", name=name)
        return asyncio.run(world.budgets_estimate(model, [USER], GenerationOptions(**options)))

    settings.RAVI = {**settings.RAVI, "PRICES": {"m": {"input_cost_per_token": 1.0, "output_cost_per_token": 2.0}}}
    amount = estimate("m", max_tokens=3)
    assert amount.tokens > 3
    assert amount.cost == (amount.tokens - 3) * 1 + 3 * 2
    before = estimate("big")
    world.budgets_largest["big"] = (50_000, Decimal(3))
    after = estimate("big")
    assert (before.cost, after.cost) == (0, Decimal(3))
    assert after.tokens - before.tokens == 50_000 - world.RESERVE_TOKENS


@on_postgresql
@pytest.mark.parametrize("budget", [None, {"deadline_s": 60, "max_agents": 3}])
def test_a_run_without_a_budget_pays_nothing_for_them(budget):
    lease = leased(make_run(budget=budget))
    entry = Entry("llm.call", "1", "m")
    assert not world.accounts_of(lease.run)
    assert world.append_statement(lease, [Entry("llm.call", "1", "m")], []) is not None
    with CaptureQueriesContext(connection) as captured:
        world.budgets_settled(lease, [entry], lambda: world.append(lease, [entry]))
        world.budgets_settled(lease, [], lambda: None, ends=True)
    assert [query["sql"].split()[0] for query in captured] == ["WITH"]
    assert not BudgetAccount.objects.exists()
