"""Waiting: a suspended run is rows and nothing else, and goes on where it was."""

import asyncio
from datetime import datetime, timedelta

import pytest
from django.db.models.functions import Now

from ravi_django import signal
from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import Run, Signal, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.runs import code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite
def test_a_run_that_waits_for_a_signal_suspends_and_goes_on_with_it():
    async def story(ctx, inbox):
        first = await ctx.sleep_until_signal("go")
        second = await ctx.sleep_until_signal("go")
        return [first, second]

    code(story)
    run = drive(make_run())
    assert (run.status, run.lease_owner) == (Status.SUSPENDED, "")
    assert run.waiting_on == [{"kind": "signal", "name": "go", "until": None}]

    signal(run.id, "other", 0)
    run = drive(run)
    assert run.status == Status.SUSPENDED
    signal(run.id, "go", 1)
    run = drive(run)
    assert run.status == Status.SUSPENDED
    signal(run.id, "go", 2)
    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "[1,2]")
    assert [entry.seq for entry in journal_of(run)] == list(range(1, run.next_seq))


@pytest.mark.sqlite
def test_a_timer_wakes_the_run_and_is_not_set_anew_by_a_replay(clock):
    async def story(ctx, inbox):
        await ctx.sleep_until(timedelta(hours=1))
        return [await ctx.sleep_until_signal(name, until=timedelta(minutes=5)) for name in ("go", "never")]

    code(story)
    run = drive(make_run())
    assert (run.status, run.wake_at) == (Status.SUSPENDED, clock.now + timedelta(hours=1))

    clock.advance(1800)
    signal(run.id, "hurry")
    due = run.wake_at
    run = drive(run)
    assert (run.status, run.wake_at) == (Status.SUSPENDED, due)
    assert world.claim(run.id, "w") is None
    clock.advance(1800)
    assert drive(run).status == Status.SUSPENDED
    signal(run.id, "go", "early")
    assert drive(run).status == Status.SUSPENDED
    clock.advance(301)
    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, '["early",null]')


def test_a_timer_goes_by_the_clock_of_the_database(monkeypatch):
    class Ahead(datetime):
        """The clock of the worker's machine."""

        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=2)

    async def story(ctx, inbox):
        await ctx.sleep_until(timedelta(hours=1))

    world.patch(monkeypatch, "gate_datetime", Ahead)
    code(story)
    run = drive(make_run())

    assert run.status == Status.SUSPENDED
    assert Run.objects.filter(id=run.id, wake_at__lte=Now() + timedelta(hours=1), wake_at__gt=Now()).exists()


def test_other_effects_finish_before_the_run_suspends_and_hold_up_no_wait_when_they_are_replayed(step):
    async def story(ctx, inbox):
        async def work():
            return [(await ctx.tool("step", name=str(n))).text for n in range(3)]

        done, told = await asyncio.gather(work(), ctx.sleep_until_signal("go"))
        await asyncio.gather(*(ctx.tool("step", name=name) for name in "cd"))
        return [*done, told, await ctx.sleep_until_signal("go")]

    code(story, tools=[step])
    run = drive(make_run())
    assert run.status == Status.SUSPENDED
    assert [entry.kind for entry in journal_of(run)].count("tool.call") == 3
    signal(run.id, "other")  # it is replayed, and has to suspend again
    run = drive(run)
    assert run.status == Status.SUSPENDED
    for number in (1, 2):
        signal(run.id, "go", number)
        run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, '["0","1","2",1,2]')
    assert [entry.kind for entry in journal_of(run)].count("tool.call") == 5


@pytest.mark.sqlite
def test_a_worker_that_dies_anywhere_loses_no_signal_and_reads_none_twice(clock):
    """They came before the waits."""

    async def waits(ctx, inbox):
        return [await ctx.sleep_until_signal("go") for _ in range(3)]

    def story(drive):
        code(waits)
        run = make_run()
        for n in range(3):
            signal(run.id, "go", n)
        return drive(run)

    for run, _ in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "[0,1,2]")
        assert Signal.objects.filter(consumed_at=None).count() == 0


def test_a_repeated_signal_is_no_error_when_the_run_has_ended():
    async def story(ctx, inbox):
        return await ctx.sleep_until_signal("go")

    code(story)
    run = make_run()
    assert [signal(run.id, "go", n, key="order-7") for n in range(2)] == [True, False]
    assert Signal.objects.get().payload == 0
    drive(run)

    assert signal(run.id, "go", 1, key="order-7") is False
    with pytest.raises(IllegalTransitionError):
        signal(run.id, "go", 1, key="order-8")


def test_a_race_that_was_won_once_is_won_the_same_way_after_the_loser_has_come_too(clock, step):
    async def story(ctx, inbox):
        waits = [asyncio.ensure_future(ctx.sleep_until_signal(name)) for name in ("a", "b")]
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await ctx.tool("step", name="1")
        return [task.result() for task in done]

    code(story, tools=[step])
    run = make_run()
    drive(run)
    run.refresh_from_db()
    assert [(wait["kind"], wait["name"]) for wait in run.waiting_on] == [("signal", "a"), ("signal", "b")]
    signal(run.id, "b", "b")
    drive(run, dies="end")  # the wait for b is recorded, and the step
    signal(run.id, "a", "a")

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, '["b"]')
    assert Signal.objects.get(name="a").consumed_at is None  # the loser has read nothing
