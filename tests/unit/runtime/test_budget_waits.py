"""Who waits for what another run has reserved gets it: whatever ends or hinders that run, it frees that first."""

import asyncio
from decimal import Decimal

import pytest

from ravi_django import register, tool
from ravi_django.conf import conf
from ravi_django.kernel import RunContext
from ravi_django.kernel.supervision import Priority
from ravi_django.models import Reservation, Run, Status
from tests.support import world
from tests.support.budgets import USER, balances, model, reserved, spent
from tests.support.runs import BOUND_S, CodeAgent, auntil, code, drive, leased, make_run
from tests.support.trees import TAKER, awaits_slot, spawn
from tests.support.world import Engine

pytestmark = pytest.mark.django_db(transaction=True)


async def once(ctx, inbox):
    await ctx.llm([USER])
    return "done"


async def together(*runs: Run, bound_s: float = BOUND_S) -> None:
    """In one worker, at once. Raises TimeoutError when they wait for ever."""
    engine = Engine(on_promoted=lambda run_id: None)
    try:
        driven = [asyncio.create_task(engine.drive(run.id)) for run in runs]
        await asyncio.wait_for(asyncio.gather(*driven), bound_s)
    finally:
        await engine.close(drain_s=0)


def test_a_run_without_a_slot_whose_worker_dies_holds_nothing(clock):
    register(CodeAgent(once, key="child", model=model(10)))
    register(CodeAgent(once, key="taker", model=model(10)))
    lease = leased(make_run(budget={"max_agents": 2, "max_turns": 2}))
    low = drive(spawn(lease, Priority.LOW), dies=1)
    high = spawn(lease, Priority.HIGH, TAKER)
    assert awaits_slot(low) and reserved(lease.run)[2] == 1
    clock.advance(conf.LEASE_S + 1)
    low = drive(low)
    assert (low.status, low.awaits_slot) == (Status.PENDING, True)
    assert not Reservation.objects.exists() and reserved(lease.run)[2] == 0
    assert drive(high).output == "done"


def test_what_a_dead_worker_held_is_freed_though_nobody_takes_its_run_over(clock):
    """As where the only worker drives another suspect, which waits for it."""
    register(CodeAgent(once, key="child", model=model(10)))
    top = leased(make_run(budget={"max_turns": 1}))
    dead, other = drive(spawn(top), dies=1), spawn(top)
    assert reserved(top.run)[2] == 1
    clock.advance(2 * conf.LEASE_S + 1)
    asyncio.run(together(other))
    assert Run.objects.get(id=other.id).output == "done"
    assert drive(dead).error["type"] == "BudgetExhaustedError"
    assert balances(top.run)


def test_what_a_live_worker_holds_is_not_freed(clock):
    top = leased(make_run(budget={"max_turns": 3}))
    holder, other = leased(spawn(top)), leased(spawn(top))
    today = clock.now.date()
    assert world.reserve(holder, "1", world.Amount(1, Decimal(0)), today) is True
    clock.advance(conf.LEASE_S + 1)  # late, and perhaps back at once
    world.free_abandoned(other, today)
    assert reserved(top.run)[2] == 1
    clock.advance(conf.LEASE_S)
    world.free_abandoned(other, today)
    assert reserved(top.run)[2] == 0


def test_a_call_that_is_stopped_between_reserving_and_calling_holds_nothing(monkeypatch):
    """It is parked until the lease ends, and an open tool, for which that waits, wants to call the model too."""
    begun, go, told = asyncio.Event(), asyncio.Event(), []

    @tool
    async def think(ctx: RunContext) -> str:
        begun.set()
        await go.wait()
        await ctx.llm([USER])
        return "thought"

    async def story(ctx, inbox):
        async def beside():
            await begun.wait()
            await ctx.llm([USER])

        await asyncio.gather(ctx.tool("think"), beside())
        return "done"

    code(story, model=model(10), tools=[think])
    run = make_run(budget={"max_turns": 2, "max_tokens": 100})
    reserve = world.reserve

    def and_then_stopped(*args):
        verdict = reserve(*args)
        if not told:
            told.append(verdict)
            engine = driving[0]
            engine.loop.call_soon_threadsafe(engine.active[run.id].recorder.waits.drain)
        return verdict

    world.patch(monkeypatch, "reserve", and_then_stopped)
    driving = []

    async def main():
        driving.append(Engine(on_promoted=lambda run_id: None))
        lease = asyncio.create_task(driving[0].drive(run.id))
        try:
            await auntil(lambda: run.id in driving[0].active and driving[0].active[run.id].recorder.waits._parked)
            go.set()
            await asyncio.wait_for(lease, BOUND_S)
        finally:
            await driving[0].close(drain_s=0)

    asyncio.run(main())
    assert told == [True]
    assert spent(run)[2] == 1 and balances(run)
    assert drive(run).output == "done"
