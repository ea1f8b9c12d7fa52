"""Signals beside messages: whoever has read the messages has read these too, once, whatever dies."""

import asyncio
import threading
from typing import Any

import pytest

from ravi_django import signal
from ravi_django.kernel import InvalidInputError, Message
from ravi_django.models import InboxMessage, JournalEntry, Run, Signal, Status
from ravi_django.testing import FakeClock, run_until_idle
from tests.support import world
from tests.support.arriving import NEW_ITEM, publish
from tests.support.runs import code, drive, every_death, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def unread(run: Run) -> int:
    return Signal.objects.filter(run=run, consumed_at=None).count()


def numbers(messages: Any) -> list[int]:
    return [message.payload.data["n"] for message in messages]


def deliver(run: Run, *given: int) -> None:
    for number in given:
        publish(run, {"n": number})


def test_what_is_read_has_no_signal_left_in_memory_either() -> None:
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
        assert unread(run) == 0
        takes = JournalEntry.objects.filter(run=run, kind="signal", phase="result").count()
        assert takes <= 2, "one a burst, not one a message"


def test_a_signal_that_a_wait_has_taken_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait and a look at once, of which the look writes first: neither makes the other's write fail."""
    read_first = threading.Event()
    receive, consume = world.receive, world.consume_signal

    def receiving(*args: Any, **more: Any) -> int:
        try:
            return receive(*args, **more)
        finally:
            read_first.set()

    def consuming(lease: Any, entries: Any, turns: Any = (), *, signal_id: int) -> int:
        if entries[-1].name == NEW_ITEM:
            read_first.wait(5)
        return consume(lease, entries, turns, signal_id=signal_id)

    world.patch(monkeypatch, "receive", receiving)
    world.patch(monkeypatch, "consume_signal", consuming)

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
    assert unread(run) == 0


def test_an_inbox_that_was_given_is_read_when_the_run_begins_anew() -> None:
    given: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        kinds = [message.payload.kind for message in inbox]
        given.append(kinds)
        if kinds == ["chat"]:
            await ctx.sleep_until_signal("go")
            await ctx.continue_as_new("second")
        if len(inbox) == 3:
            await ctx.continue_as_new({"third": True})
        await ctx.sleep_until_signal("end")

    code(story)
    run = drive(make_run())
    deliver(run, 1, 2)
    signal(run, "go")
    drive(run)
    assert unread(run) == 2, "they come along, and so do their signals"
    drive(run)

    assert given[-1] == ["data", "data", "chat"]
    assert unread(run) == 0


def test_a_message_can_be_left_to_the_next_generation_with_those_behind_it() -> None:
    given: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        given.append([getattr(message.payload, "data", {}).get("n", "text") for message in inbox])
        with pytest.raises(InvalidInputError, match="none of the messages"):
            await ctx.continue_as_new(unread=Message(target=ctx.agent_id, payload=inbox[0].payload))
        if len(given) < 3:
            place = min(1, len(inbox) - 1)
            await ctx.continue_as_new({"n": f"after {len(given)}"}, unread=inbox[place])

    code(story)
    run = make_run()
    deliver(run, 1, 2)
    for _ in range(3):
        drive(run)

    assert given == [["text", 1, 2], [1, 2, "after 1"], [2, "after 1", "after 2"]]
    assert run.status == Status.COMPLETED
