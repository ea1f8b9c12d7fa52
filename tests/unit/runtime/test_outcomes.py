"""How the agent's own code ends its run, and what becomes of runs that cannot be driven."""

from __future__ import annotations

import asyncio

import pytest

from ravi_django.conf import conf
from ravi_django.models import Status
from ravi_django.testing import journal_of
from tests.support.gates import Gate
from tests.support.runs import adrive, code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_tasks_that_the_agent_leaves_behind_end_with_it(clock):
    ended = []

    async def story(ctx, inbox):
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        async def parent():
            inner = asyncio.create_task(forever())
            await inner

        left = [asyncio.create_task(forever()), asyncio.create_task(parent())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return f"left {len(left)}"

    code(story)

    run = drive(make_run())

    assert (run.output, ended) == ("left 2", [1, 1])


def test_a_call_that_is_left_open_at_the_agents_end_is_recorded_or_absent_but_never_after_it(clock):
    async def main():
        gate = Gate()

        async def story(ctx, inbox):
            left = asyncio.create_task(ctx.tool("hold"))
            await gate.began.wait()
            return f"done {left.done()}"

        code(story, tools=[gate.tool()])
        await adrive(run)

    run = make_run()
    asyncio.run(main())

    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.completed"]


def test_an_unknown_agents_run_is_left_for_a_worker_that_knows_it(clock):
    run = make_run("test/nobody")

    with pytest.raises(AssertionError, match="could not be claimed"):
        drive(run)

    run.refresh_from_db()
    assert (run.status, run.attempts, run.lease_epoch) == (Status.PENDING, 0, 0)


def test_a_run_that_takes_its_workers_down_is_blocked(clock):
    async def story(ctx, inbox):
        return "never"

    code(story)
    run = make_run()
    for _ in range(conf.MAX_ATTEMPTS):
        drive(run, dies="end")
        clock.advance(conf.LEASE_S + 1)

    drive(run)

    assert (run.status, run.error["type"]) == (Status.BLOCKED, "AgentCrashError")
    assert f"run {run.id} of test/code took its worker down too often" in run.error["message"]


@pytest.mark.parametrize("in_group", [False, True])
def test_an_agents_own_error_fails_the_run(clock, in_group):
    async def bad(*args):
        raise ValueError("a bug of the site's")

    async def grouped(ctx, inbox):
        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    code(grouped if in_group else bad)

    run = drive(make_run())

    assert (run.status, run.error) == (Status.FAILED, {"type": "ValueError", "message": "a bug of the site's"})
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.failed"]
