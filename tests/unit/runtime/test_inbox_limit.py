"""Agents that are given so many messages at a time."""

from typing import Any

import pytest

from ravi_django import signal
from ravi_django.kernel import Message
from ravi_django.models import Run, Status
from ravi_django.testing import FakeClock
from tests.support.arriving import arrive
from tests.support.runs import code, drive, every_death, make_run

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


def test_a_generation_begins_with_the_messages_that_the_code_did_not_get() -> None:
    rounds: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        rounds.append([*words(inbox), ctx.state])
        if len(rounds) < 3:
            await ctx.continue_as_new(len(rounds))
        await ctx.sleep_until_signal("go")

    code(story).inbox_limit = 2  # type: ignore[attr-defined]
    run = waiting(5)
    for _ in range(3):
        drive(run)

    assert rounds == [["hi", "1", None], ["2", "3", 1], ["4", 2]]
