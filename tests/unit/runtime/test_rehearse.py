"""`ravi_replay_check`: every live run against the code on disk, and nothing happens."""

import asyncio
import json
from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import register, signal
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import case
from tests.support.runs import CodeAgent, code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


async def waiting(ctx, inbox):
    await ctx.tool("step", name="a")
    await asyncio.gather(ctx.tool("step", name="b"), ctx.tool("step", name="c"))
    await ctx.sleep_until_signal("go")
    await ctx.tool("step", name="d")


async def another_argument(ctx, inbox):
    await ctx.tool("step", name="x")


async def one_less(ctx, inbox):
    await ctx.tool("step", name="a")
    await ctx.sleep_until_signal("go")


async def ends_early(ctx, inbox):
    await ctx.tool("step", name="a")


async def raises(ctx, inbox):
    raise RuntimeError("it is broken")


def check(*args):
    out = StringIO()
    try:
        call_command("ravi_replay_check", *args, stdout=out)
    except SystemExit as exit:
        return exit.code, out.getvalue()
    return 0, out.getvalue()


@pytest.fixture
def suspended(step, ran):
    code(waiting, tools=[step])
    run = drive(make_run())
    assert run.status == Status.SUSPENDED
    ran.clear()
    return run


def snapshot():
    return list(Run.objects.values()), JournalEntry.objects.count()


def test_code_that_fits_passes_nothing_is_done_and_what_comes_after_the_record_may_change(suspended, step, ran):
    async def one_more_after_the_wait(ctx, inbox):
        await waiting(ctx, inbox)
        await ctx.tool("step", name="e")

    before = snapshot()
    status, said = check()
    assert (status, said.splitlines()[-1]) == (0, "ravi_replay_check: runs=1 broken=0 drifted=0")
    assert (snapshot(), ran) == (before, [])
    code(one_more_after_the_wait, tools=[step])
    signal(suspended.id, "go")
    assert (check()[0], ran) == (0, [])


def test_code_that_does_not_fit_fails_the_check_with_the_list(suspended, step, ran):
    before = snapshot()
    for changed, words in (
        (another_argument, "DeterminismError"),
        (one_less, "DeterminismError"),
        (ends_early, "no longer asks for"),
        (raises, "it is broken"),
        (None, "AgentNotFoundError"),
    ):
        world.agents_by_address.clear()
        if changed:
            code(changed, tools=[step])
        with case(words):
            status, said = check()
            assert status == 1
            assert str(suspended.id) in said
            assert words in said
            assert said.splitlines()[-1] == "ravi_replay_check: runs=1 broken=1 drifted=0"
            assert (snapshot(), ran) == (before, [])
    code(another_argument, tools=[step])
    status, said = check("--json")
    (found,) = [json.loads(line) for line in said.splitlines()]
    assert status == 1
    assert found["error"]["diff"]["recorded"]["arguments"] == {"name": "a"}
    assert found["error"]["diff"]["asked"]["arguments"] == {"name": "x"}


def test_ended_and_queued_runs_are_not_looked_at(step, suspended):
    code(ends_early, tools=[step])
    drive(make_run())
    make_run(session=suspended.session)
    status, said = check("--agent", "test/nobody")
    assert (status, said.splitlines()[-1]) == (0, "ravi_replay_check: runs=0 broken=0 drifted=0")
    assert "runs=1 " in check()[1]


def test_children_are_replayed_with_their_parents(step, ran):
    async def parent(ctx, inbox):
        await ctx.ask(CodeAgent(waiting, key="child").id, "go")

    register(CodeAgent(waiting, key="child", tools=[step]))
    code(parent)
    make_run()
    run_until_idle()
    ran.clear()
    assert check() == (0, "ravi_replay_check: runs=2 broken=0 drifted=0\n")
    register(CodeAgent(another_argument, key="child", tools=[step]), replace=True)
    assert "runs=2 broken=1" in check()[1]
    assert ran == []
