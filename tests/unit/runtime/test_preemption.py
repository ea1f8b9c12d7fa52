"""A run that loses its slot to an urgent one: its worker releases it, and it continues from its journal later."""

import asyncio

import pytest

from ravi_django import register, tool
from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ControlPayload, Message
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Run, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.gates import Gate
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, auntil, code, drive, in_background, leased, make_run
from tests.support.trees import TAKER, awaiting, awaits_slot, ended, root, spawn, suspended
from tests.support.world import Engine, cancel

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = AgentId("test", "child")
LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL


def child(function, tools=()):
    register(CodeAgent(function, key="child", tools=tools))


def tools_of(run):
    return [entry.request["arguments"]["name"] for entry in journal_of(run) if entry.kind == "tool.call"]


async def stay(ctx, inbox):
    return await ctx.sleep_until_signal("go")


async def aside(function, *args):
    return await asyncio.to_thread(lambda: in_background(function, *args).result(BOUND_S))


def displaced_while_driven(story, tools=(), between=None):
    """Drive a LOW child of `story`; take its slot while its call of `hold` is open, let its worker's heart beat, and
    let the call go. Returns (the root's lease, the child, the run that took the slot)."""
    lease = root(limit=2)
    low = spawn(lease, LOW)

    async def main():
        gate = Gate()
        child(story, [gate.tool(), *tools])
        engine = Engine()
        try:
            driving = asyncio.create_task(engine.drive(low.id))
            await asyncio.wait_for(gate.began.wait(), BOUND_S)
            taker = await aside(spawn, lease, HIGH, TAKER)
            await aside(engine.heartbeat.beat)
            await auntil(lambda: engine.active[low.id].recorder.state.stop is not None)
            if between is not None:
                await aside(between, low)
            gate.open.set()
            await asyncio.wait_for(driving, BOUND_S)
            await auntil(lambda: not engine._leases)
        finally:
            await engine.close(drain_s=0)
        return taker

    taker = asyncio.run(main())
    low.refresh_from_db()
    return lease, low, taker


async def three_steps(ctx, inbox):
    first = await ctx.tool("step", name="first")
    held = await ctx.tool("hold", name="held")
    last = await ctx.tool("step", name="last")
    return first.text + held.text + last.text


@pytest.mark.sqlite
def test_a_displaced_run_is_released_at_its_next_check_and_continues_without_repeating_anything(clock, ran, step):
    _, low, taker = displaced_while_driven(three_steps, [step])

    assert (low.status, low.crashes, low.attempts, low.lease_owner) == (Status.PENDING, 0, 0, "")
    assert low.waits_for == {"kind": "slot", "name": "", "until": None}
    assert (ran, tools_of(low)) == (["first"], ["first", "held"])
    assert world.claim(low.id, "w") is None
    assert ended(leased(taker)) == [low.id]
    drive(low)
    assert (low.status, low.output, low.crashes) == (Status.COMPLETED, "firstheldlast", 0)
    assert (ran, tools_of(low)) == (["first", "last"], ["first", "held", "last"])
    assert [entry.seq for entry in journal_of(low)] == list(range(1, len(journal_of(low)) + 1))


def test_a_run_that_gets_its_slot_back_before_its_release_can_be_claimed_after_it(clock, ran, step):
    _, low, _ = displaced_while_driven(three_steps, [step], between=lambda low: end_others_of(low))

    assert (low.status, low.waits_for, low.lease_epoch) == (Status.PENDING, None, 1)
    drive(low)
    assert (low.output, ran) == ("firstheldlast", ["first", "last"])


def end_others_of(low):
    for run in Run.objects.filter(root_id=low.root_id, agent=TAKER):
        ended(leased(run))


def test_a_check_tears_down_no_effect_that_is_open_elsewhere_in_the_run(clock, ran):
    @tool(effect="at_most_once")
    async def pay(name: str) -> str:
        """Pay."""
        for _ in range(50):
            await asyncio.sleep(0)
        ran.append(name)
        return name

    async def looking(ctx):
        while True:
            ctx.check()
            await asyncio.sleep(0)

    async def both(ctx):
        await ctx.tool("hold", name="held")
        await ctx.tool("pay", name="never")

    async def story(ctx, inbox):
        await asyncio.gather(looking(ctx), ctx.tool("hold", name="beside"), both(ctx))

    _, low, _ = displaced_while_driven(story, [pay])

    assert (low.status, low.error, ran) == (Status.PENDING, None, [])
    assert sorted(tools_of(low)) == ["beside", "held"]


def test_a_displaced_run_that_ends_before_it_looks_has_ended(clock):
    async def story(ctx, inbox):
        return (await ctx.tool("hold", name="held")).text

    _, low, _ = displaced_while_driven(story)

    assert (low.status, low.output, low.awaits_slot) == (Status.COMPLETED, "held", False)


def test_a_displaced_run_that_suspends_before_it_looks_is_woken_as_any_other(clock):
    lease = root(limit=2)
    low = leased(spawn(lease, LOW))
    spawn(lease, HIGH)
    suspended(low)

    world.touch([low.run_id])

    assert world.claim(low.run_id, "w") is not None


def test_a_cancellation_comes_before_the_loss_of_the_slot(clock, ran, step):
    _, low, _ = displaced_while_driven(three_steps, [step], between=lambda low: cancel(low.id, "enough"))
    if low.status == Status.PENDING:  # it was released by then, and any worker may take it to its end
        drive(low)

    assert (low.status, low.awaits_slot, ran) == (Status.CANCELLED, False, ["first"])


def test_a_run_that_its_worker_was_to_release_can_be_cancelled():
    lease = root(limit=2)
    low = leased(spawn(lease, LOW))
    spawn(lease, HIGH)
    cancel(lease.run_id, "enough")
    world.requeue(low)
    assert world.claim(low.run_id, "another").run.cancel_requested_at is not None


def test_the_worker_that_takes_a_displaced_run_over_releases_it(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        return (await ctx.tool("step", name="last")).text

    child(story, [step])
    lease = root(limit=2)
    low = spawn(lease, LOW)
    drive(low, dies=1, written=True)
    taker = spawn(lease, HIGH)
    clock.advance(conf.LEASE_S + 1)

    drive(low)

    assert (low.status, low.lease_owner, low.awaits_slot, ran) == (Status.PENDING, "", True, ["first"])
    assert world.claim(low.id, "worker") is None
    ended(leased(taker))
    drive(low)
    assert (low.status, low.output, ran) == (Status.COMPLETED, "last", ["first", "last"])


def test_runs_get_free_slots_by_priority_and_then_by_age():
    lease = root(limit=5)
    runs = [spawn(lease, priority) for priority in (LOW, NORMAL, LOW, NORMAL)]
    takers = [leased(spawn(lease, CRITICAL)) for _ in runs]
    assert len(awaiting(lease)) == 4

    order = [ended(taker) for taker in takers]

    assert order == [[runs[1].id], [runs[3].id], [runs[0].id], [runs[2].id]]
    assert awaiting(lease) == []


def test_a_handoff_gives_the_slots_of_the_children_that_end_with_it_away(clock):
    async def handing(ctx, inbox):
        await ctx.spawn(AgentId("test", "other"), "x", priority=HIGH)
        await ctx.handoff(AgentId("test", "other"), "go on")

    register(CodeAgent(stay, key="other"))
    register(CodeAgent(handing, key="handing"))
    lease = root(limit=3)
    low, front = spawn(lease, LOW), spawn(lease, NORMAL, "test/handing")

    drive(front)

    assert (front.agent, Run.objects.get(parent=front).status) == ("test/other", Status.CANCELLED)
    assert not awaits_slot(low)


def test_the_engine_hints_the_run_that_gets_the_slot_of_one_that_has_ended(clock):
    async def done(ctx, inbox):
        return "done"

    register(CodeAgent(done, key="child"))
    lease = root(limit=2)
    low = spawn(lease, LOW)
    taker = spawn(lease, HIGH)
    hinted = []

    async def main():
        engine = Engine(on_promoted=hinted.append)
        try:
            await asyncio.wait_for(engine.drive(taker.id), BOUND_S)
        finally:
            await engine.close(drain_s=0)

    asyncio.run(main())

    assert hinted == [low.id]
    assert not awaits_slot(low)


def test_a_parent_that_aborts_a_child_gives_its_slot_away():
    async def story(ctx, inbox):
        await ctx.spawn(ADDRESS, "low", priority=LOW)
        high = await ctx.spawn(ADDRESS, "high", priority=HIGH)
        await ctx.send(high, Message(target=ADDRESS, payload=ControlPayload(signal="abort")))
        await ctx.tool("look")

    @tool
    def look() -> str:
        """See the children."""
        seen.extend(Run.objects.order_by("id").values_list("status", "awaits_slot")[1:])
        return ""

    seen = []
    child(stay)
    code(story, tools=[look])
    drive(make_run(budget={"max_agents": 2}))
    assert seen == [(Status.PENDING, False), (Status.CANCELLED, False)]
