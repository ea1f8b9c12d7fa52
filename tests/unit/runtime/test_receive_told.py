"""Waits that published messages end: each message ends one wait, and none once the code has it, whatever dies."""

import asyncio
from typing import Any

import pytest

from ravi_django import signal
from ravi_django.models import InboxMessage, JournalEntry, Run, Signal, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import NEW_ITEM, logged, publish
from tests.support.runs import code, drive, every_death, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def numbers(messages: Any) -> list[int]:
    return [message.payload.data["n"] for message in messages]


def deliver(run: Run, *given: int) -> None:
    for number in given:
        publish(run, {"n": number})


def test_what_the_code_was_given_ends_no_wait() -> None:
    found: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("go")
        found.append(numbers(await ctx.receive()))
        await ctx.sleep_until_signal(NEW_ITEM)

    code(story)
    run = drive(make_run())
    deliver(run, 1, 2, 3)
    signal(run, "other")
    signal(run, "go")
    drive(run)

    assert (run.status, found[-1]) == (Status.SUSPENDED, [1, 2, 3])
    assert [row.name for row in Signal.objects.filter(run=run, consumed_at=None)] == ["other"]


def test_whatever_dies_each_is_given_once_and_none_is_left(clock: FakeClock) -> None:
    read: list[Any] = []
    started: list[Any] = []

    async def reads(ctx: Any, inbox: Any) -> list[int]:
        if started[-1:] != [ctx]:
            started.append(ctx)
            read.clear()
        while len(read) < 5:
            await ctx.sleep_until_signal(NEW_ITEM)
            read.extend(numbers(await ctx.receive()))
            await ctx.log("read", list(read))
        return read

    def story(drive: Any) -> Run:
        code(reads)
        run = drive(make_run())
        deliver(run, 1, 2, 3)
        drive(run, meanwhile=lambda: deliver(run, 4, 5))
        if InboxMessage.objects.filter(run=run).count() < 6:
            deliver(run, 4, 5)
        run_until_idle()
        return run

    for run, _ in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "[1,2,3,4,5]"), run.error
        takes = JournalEntry.objects.filter(run=run, kind="signal", phase="result").count()
        assert takes <= 2, "one a burst, not one a message"


def test_a_message_ends_one_wait_also_after_a_crash_and_in_the_next_generation(clock: FakeClock) -> None:
    """The second generation begins with one of its two messages: the other one has ended a wait before."""
    ended: list[str] = []

    async def waits(ctx: Any, inbox: Any) -> None:
        if ctx.state:
            await ctx.log("third", (await ctx.sleep_until_signal(NEW_ITEM))["publication"])
            return
        for name in ("first", "second"):
            await ctx.log(name, (await ctx.sleep_until_signal(NEW_ITEM))["publication"])
        await ctx.continue_as_new(2)

    def story(drive: Any) -> Run:
        code(waits).inbox_limit = 1  # type: ignore[attr-defined]
        run = drive(make_run())
        ended[:] = [publish(run, {"n": number}) for number in (1, 2)]
        while drive(run).status == Status.PENDING:
            pass
        run_until_idle()
        run.refresh_from_db()
        assert run.status == Status.SUSPENDED, run.error
        ended.append(publish(run, {"n": 3}))
        run_until_idle()
        return run

    for run, _ in every_death(clock, story):
        assert [logged(run, name) for name in ("first", "second", "third")] == [[one] for one in ended]


def test_a_fork_waits_for_the_messages_that_ended_no_wait_of_its_past() -> None:
    async def waits(ctx: Any, inbox: Any) -> None:
        for name in ("first", "second"):
            await ctx.log(name, (await ctx.sleep_until_signal(NEW_ITEM))["publication"])

    code(waits)
    run = drive(make_run())
    ended = [publish(run, {"n": number}) for number in (1, 2)]
    drive(run)
    forked = drive(world.fork(run.id, JournalEntry.objects.get(run=run, kind="log", name="first").seq))

    assert [logged(forked, name) for name in ("first", "second")] == [[one] for one in ended]


def test_a_wait_and_a_look_at_once_do_not_take_from_each_other() -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        await ctx.sleep_until_signal("go")
        taken, read = await asyncio.gather(ctx.sleep_until_signal(NEW_ITEM), ctx.receive())
        return [taken["message"] is not None, numbers(read)]

    code(story)
    run = drive(make_run())
    deliver(run, 1, 2)
    signal(run, "go")
    drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "[true,[1,2]]"), run.error
