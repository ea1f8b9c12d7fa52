"""Runs whose workers died twice in a row: a process drives one of them at a time, beside its other runs."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django import register
from ravi_django.models import Run, Status, WorkerProcess
from tests.support import world
from tests.support.runs import BOUND_S, CodeAgent, auntil, leased, make_run
from tests.support.world import Engine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite
@pytest.mark.parametrize(("owner_seen_s", "crashes"), [(-1, 1), (1, 0)])
@pytest.mark.parametrize("look", [True, False])
def test_a_lost_lease_counts_a_crash_unless_its_worker_was_seen_later(clock, owner_seen_s, crashes, look):
    lease = leased(make_run(), "w1")
    over = lease.run.lease_expires_at
    clock.advance((over - clock.now).total_seconds() + owner_seen_s)
    world.worker_seen("w1", 1)
    assert WorkerProcess.objects.get().seen_at == clock.now
    clock.advance(60)

    claimed = world.claim_next("w2", ["test/code"]) if look else world.claim(lease.run_id, "w2")

    assert claimed.run.crashes == crashes


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_drives_one_suspect_at_a_time_beside_its_other_runs(step, caplog, ends):
    """The next one is claimed once the first has ended, or has come past the place where its workers died."""
    gates, driven = {}, []

    async def suspect(ctx, inbox):
        driven.append(ctx.run_id)
        await gates[ctx.run_id].wait()
        if not ends:
            await ctx.tool("step", name="past it")
            await asyncio.Event().wait()

    async def other(ctx, inbox):
        driven.append("beside it")

    async def scenario():
        gates.update({str(run.id): asyncio.Event() for run in suspects})
        engine = Engine()
        try:
            engine.hint(first.id)
            await auntil(lambda: driven == [str(first.id)])
            assert await engine.hint(second.id) is False
            engine.look()
            await auntil(lambda: driven == [str(first.id), "beside it"] and not engine._looking)
            await engine.database.call(second.refresh_from_db)
            assert (second.status, second.lease_epoch) == (Status.PENDING, 0)
            gates[str(first.id)].set()
            await auntil(lambda: driven[2:] == [str(second.id)])
        finally:
            await engine.close(drain_s=0)

    register(CodeAgent(suspect, key="suspect", tools=[step]))
    register(CodeAgent(other, key="other"))
    first, second = suspects = [make_run("test/suspect") for _ in range(2)]
    make_run("test/other")
    Run.objects.filter(id__in=[run.id for run in suspects]).update(crashes=2)

    asyncio.run(asyncio.wait_for(scenario(), BOUND_S))

    waiting = [record for record in caplog.records if getattr(record, "action", "") == "run.suspect_waits"]
    assert [record.args for record in waiting] == [(second.id, first.id)]
