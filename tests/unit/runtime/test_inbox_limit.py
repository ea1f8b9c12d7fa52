"""Agents that are given so many messages at a time, and what a generation carries for the next one."""

from typing import Any

import pytest

from ravi_django import register, signal
from ravi_django.kernel import InvalidInputError, Message
from ravi_django.models import InboxMessage, Run, Status
from ravi_django.testing import FakeClock
from tests.support.arriving import arrive
from tests.support.runs import CodeAgent, code, drive, every_death, make_run
from tests.support.world import INBOXES_CARRIED

pytestmark = pytest.mark.django_db(transaction=True)


def words(messages: list[Message]) -> list[Any]:
    return [getattr(message.payload, "data", None) or message.payload.message.text for message in messages]  # type: ignore[attr-defined]


def waiting(count: int) -> Run:
    run = make_run()
    for number in range(1, count):
        arrive(run, str(number))
    return run


def test_code_that_returns_is_given_the_next_ones(step: Any, clock: FakeClock) -> None:
    rounds: list[Any] = []
    leases: list[Any] = []

    async def returns(ctx: Any, inbox: Any) -> str:
        if leases[-1:] != [ctx]:
            leases.append(ctx)
            rounds.clear()
        rounds.append(words(inbox))
        await ctx.tool("step", name=rounds[-1][0])
        return "done"

    def story(drive: Any) -> Run:
        code(returns, tools=[step]).inbox_limit = 2  # type: ignore[attr-defined]
        return drive(waiting(5))

    for run, _ in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "done")
        assert rounds == [["hi", "1"], ["2", "3"], ["4"]]


@pytest.mark.sqlite
def test_it_reads_on_by_parts_and_waits_for_none_that_is_there(clock: FakeClock) -> None:
    found: list[Any] = []

    async def reads(ctx: Any, inbox: Any) -> Any:
        given = [words(inbox)]
        while sum(map(len, given)) < 7:
            assert await ctx.sleep_until_signal("go", or_message=True) is None
            given.append(words(await ctx.receive()))
        found[:] = given

    def story(drive: Any) -> Run:
        code(reads).inbox_limit = 3  # type: ignore[attr-defined]
        return drive(waiting(7))

    for run, _ in every_death(clock, story):
        assert run.status == Status.COMPLETED, run.error
        assert found == [["hi", "1", "2"], ["3", "4", "5"], ["6"]]


def test_what_the_journal_has_given_is_given_again_whatever_the_limit_is_now(clock: FakeClock) -> None:
    rounds: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        rounds.append(words(inbox))
        await ctx.sleep_until_signal("go")
        rounds.append(words(await ctx.receive()))
        await ctx.sleep_until_signal("on")

    agent = code(story)
    run = drive(waiting(5))
    for number in range(5, 9):
        arrive(run, str(number))
    signal(run, "go")
    drive(run)
    agent.inbox_limit = 1  # type: ignore[attr-defined]
    arrive(run, "9")
    drive(run)

    assert rounds[-2:] == [["hi", "1", "2", "3", "4"], ["5", "6", "7", "8"]]


def test_a_generation_that_was_carried_nothing_is_given_all() -> None:
    """What it begins with is behind them."""
    rounds: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        rounds.append(words(inbox))
        if len(rounds) == 1:
            await ctx.continue_as_new({"n": 1})
        await ctx.sleep_until_signal("go")

    code(story).inbox_limit = 2  # type: ignore[attr-defined]
    run = waiting(5)
    drive(run)
    drive(run)

    assert rounds == [["hi", "1"], ["2", "3", "4", {"n": 1}]]


@pytest.mark.sqlite
def test_it_is_given_before_the_others_and_in_place_of_the_one_before() -> None:
    rounds: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> Any:
        rounds.append(words(inbox))
        if len(rounds) < 3:
            arrived = {"n": len(rounds)}
            await ctx.continue_as_new("again", unread=inbox[-1], carry=arrived)
        if len(rounds) == 3:
            await ctx.continue_as_new("no more")
        return "done"

    code(story)
    run = waiting(2)
    for _ in range(3):
        drive(run)
    assert rounds == [["hi", "1"], [{"n": 1}, "1", "again"], [{"n": 2}, "again", "again"]]
    assert not InboxMessage.objects.filter(run=run, message_id=INBOXES_CARRIED).exists()
    drive(run)

    assert rounds[-1] == ["no more"]
    assert (run.status, run.output) == (Status.COMPLETED, "done")


def test_a_run_that_was_woken_may_end_with_it() -> None:
    """It is no message that somebody still has to be given."""

    async def story(ctx: Any, inbox: Any) -> Any:
        if inbox[0].payload.kind == "chat":
            await ctx.continue_as_new(carry={"n": 1})
        await ctx.sleep_until_signal("go")
        return words(await ctx.receive())

    code(story)
    run = drive(make_run())
    drive(run)
    signal(run, "go")

    def woken(engine: Any) -> None:
        append = engine.appender.append

        async def and_once_more(*args: Any) -> Any:
            found = await append(*args)
            await engine.database.call(signal, run, "other")
            return found

        engine.appender.append = and_once_more

    drive(run, setup=woken)
    assert (run.status, run.output) == (Status.COMPLETED, "[]")


def test_it_is_no_message_to_who_is_handed_the_run() -> None:
    given: list[Any] = []

    async def other(ctx: Any, inbox: Any) -> None:
        given.append(words(inbox))

    async def story(ctx: Any, inbox: Any) -> None:
        if words(inbox) == ["hi", "1"]:
            await ctx.continue_as_new(unread=inbox[1], carry={"n": 1})
        with pytest.raises(InvalidInputError, match="none of the messages"):
            await ctx.continue_as_new(unread=inbox[0])
        await ctx.handoff("test/other")

    code(story)
    register(CodeAgent(other, key="other"))
    run = waiting(2)
    for _ in range(3):
        drive(run)

    assert (run.status, given) == (Status.COMPLETED, [["1"]])
    assert not InboxMessage.objects.filter(run=run, message_id=INBOXES_CARRIED).exists()
