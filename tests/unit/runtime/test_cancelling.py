"""Cancellation and deadlines reach a run wherever it stands."""

import asyncio
from datetime import timedelta

import pytest

from ravi_django.kernel import ChatMessage
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.gates import cancelled_in
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.mark.sqlite
def test_cancelling_reaches_a_model_call_that_hangs(clock):
    model = ScriptedModel(["late"], delay=60)

    async def story(ctx, inbox):
        return (await ctx.llm([USER])).text

    run = cancelled_in(make_run(), story, model=model, began=lambda: model.calls)
    assert (run.status, run.error["type"]) == (Status.CANCELLED, "Cancelled")
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "llm.paid", "run.cancelled"]


async def holding(ctx):
    return (await ctx.tool("hold")).text


async def checking(ctx):
    try:
        await ctx.tool("hold")
    except asyncio.CancelledError:
        ctx.check()


async def in_a_group(ctx):
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.tool("hold"))
        group.create_task(ctx.tool("hold", name="other"))


async def checking_in_a_group(ctx):
    async with asyncio.TaskGroup() as group:
        group.create_task(checking(ctx))


@pytest.mark.parametrize("work", [holding, checking, in_a_group, checking_in_a_group])
def test_cancelling_reaches_an_open_tool_call(clock, work):
    async def story(ctx, inbox):
        return await work(ctx)

    assert cancelled_in(make_run(), story).status == Status.CANCELLED


def test_a_deadline_fails_the_run_that_does_not_meet_it(clock):
    async def story(ctx, inbox):
        deadlines.append(ctx.meta.deadline)
        return (await ctx.llm([USER])).text

    deadlines = []
    code(story, model=ScriptedModel(["late"], delay=60))
    run = drive(make_run(deadline=clock.now + timedelta(seconds=0.05)))
    assert run.status == Status.FAILED
    assert run.error == {"type": "DeadlineExceeded", "message": "the run's deadline passed before it ended"}
    code(story, model=ScriptedModel(["in time"]))
    assert drive(make_run(deadline=clock.now + timedelta(seconds=60))).output == "in time"
    assert deadlines[-1] == clock.now + timedelta(seconds=60)


def test_a_budgets_deadline_counts_from_the_first_start(clock, ran, step):
    async def story(ctx, inbox):
        await ctx.tool("step", name="first")
        await ctx.tool("step", name="second")

    code(story, tools=[step])
    run = make_run(budget={"deadline_s": 20})
    drive(run, dies=2)
    run = take_over(clock, run)  # more than 20 s later
    assert (run.status, run.error["type"]) == (Status.FAILED, "DeadlineExceeded")
