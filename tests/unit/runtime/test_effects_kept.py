"""An effect that has happened is recorded by the worker that made it, however long the database is away."""

from __future__ import annotations

import asyncio
import time

import pytest
from django.db import OperationalError

from ravi_django import tool
from ravi_django.conf import conf
from ravi_django.models import HumanRequest, JournalEntry, Status
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, drive, make_run, patch_append
from tests.support.world import Engine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def away(monkeypatch):
    """While it is set, the database takes no result. It holds how often that was tried."""
    append, is_away = world.fence_append, asyncio.Event()
    is_away.tries = 0
    is_away.set()

    def appending(lease, entries, turns):
        if is_away.is_set() and entries[-1].phase == "result" and entries[-1].name == "pay":
            is_away.tries += 1
            raise OperationalError("the server is away")
        return append(lease, entries, turns)

    world.patch(monkeypatch, "DATABASE_RETRY_S", 0.0)
    world.patch(monkeypatch, "EFFECTS_REPEAT_S", 0.001)
    patch_append(monkeypatch, appending)
    return is_away


@pytest.fixture
def paid():
    return []


@pytest.fixture
def pay(paid):
    @tool(effect="at_most_once")
    async def pay(number: int) -> str:
        """Pay."""
        paid.append(number)
        return "paid"

    return pay


async def came_back(away, tries):
    await auntil(lambda: away.tries >= tries)
    away.clear()


def test_twenty_results_outlast_an_absence_of_the_database(away, paid, pay):
    async def story(ctx, inbox):
        back = asyncio.create_task(came_back(away, 100))
        results = await asyncio.gather(*(ctx.tool("pay", number=number) for number in range(20)))
        await back
        return str({result.text for result in results})

    code(story, tools=[pay])

    run = drive(make_run())

    assert (run.status, run.output, sorted(paid)) == (Status.COMPLETED, "{'paid'}", list(range(20)))
    assert not HumanRequest.objects.exists()


def test_meanwhile_the_run_begins_nothing_new(away, paid, pay, ran, step):
    begun_while_away = []

    async def story(ctx, inbox):
        paying = asyncio.create_task(ctx.tool("pay", number=1))
        await auntil(lambda: away.tries)
        stepping = asyncio.create_task(ctx.tool("step", name="next"))
        await auntil(lambda: away.tries > 20)
        begun_while_away.extend(ran)
        away.clear()
        await asyncio.gather(paying, stepping)

    code(story, tools=[pay, step])

    run = drive(make_run())

    assert (run.status, begun_while_away, ran) == (Status.COMPLETED, [], ["next"])


def test_a_cancellation_comes_after_the_row(away, paid, pay):
    async def story(ctx, inbox):
        paying = asyncio.create_task(ctx.tool("pay", number=1))
        await auntil(lambda: away.tries > 3)
        paying.cancel()
        await auntil(lambda: away.tries > 10)
        away.clear()
        await asyncio.wait([paying])
        return str(paying.cancelled())

    code(story, tools=[pay])

    assert drive(make_run()).output == "True"
    assert JournalEntry.objects.filter(kind="tool.call", phase="result").count() == 1


def test_a_worker_that_has_drained_gives_up(away, paid, pay):
    async def main():
        engine = Engine()
        driving = engine.hint(run.id)
        await auntil(lambda: away.tries > 3)
        await asyncio.wait_for(engine.close(drain_s=0), BOUND_S)
        await asyncio.wait_for(driving, BOUND_S)

    async def story(ctx, inbox):
        await ctx.tool("pay", number=1)

    code(story, tools=[pay])
    run = make_run()
    asyncio.run(main())

    run.refresh_from_db()
    assert (run.status, paid) == (Status.RUNNING, [1])


def test_a_worker_whose_heartbeat_failed_claims_nothing(settings):
    settings.RAVI = {**settings.RAVI, "HEARTBEAT_S": 0.05}

    async def story(ctx, inbox):
        return "done"

    def fails():
        raise OperationalError("the server is away")

    async def main():
        engine = Engine()
        beat = engine.heartbeat.beat
        engine.heartbeat.beat = fails
        try:
            await auntil(lambda: engine.heartbeat.failed)
            refused = await engine.drive(run.id)
            engine.heartbeat.beat = beat
            await auntil(lambda: not engine.heartbeat.failed)
            return refused, await engine.drive(run.id)
        finally:
            await engine.close(drain_s=0)

    code(story)
    run = make_run()

    assert asyncio.run(main()) == (False, True)


def test_the_time_of_the_load_counts_against_the_lease(monkeypatch, ran, step):
    """A worker that was held up between its claim and its first effect does not act on a lease that may be over."""
    late = 0.0
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + late)

    def setup(engine):
        call = engine.database.call

        async def slow(function, *args, **kwargs):
            nonlocal late
            if function.__name__ == "load_with_facts":
                late = conf.LEASE_S
            return await call(function, *args, **kwargs)

        engine.database.call = slow

    async def story(ctx, inbox):
        await ctx.tool("step", name="late")

    code(story, tools=[step])

    assert drive(make_run(), setup=setup).status == Status.RUNNING
    assert ran == []
