"""The event bus's outbox: which events a run leaves there."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from ravi_django import register, submit
from ravi_django.kernel.event_types import MAX_TEXT
from ravi_django.models import OutboxEvent, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.outboxes import MODEL, answers, steps, told, types
from tests.support.patience import BOUND_S
from tests.support.runs import (
    CodeAgent,
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    take_over,
    until,
)
from tests.support.world import Entry

pytestmark = pytest.mark.django_db(transaction=True)


async def breaks(ctx: Any, inbox: Any) -> str:
    raise ValueError("api says no")


@pytest.mark.sqlite
def test_a_run_says_that_it_was_asked_for_began_and_ended(hints: list[int], django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("ann")
    code(answers)
    run = submit("test/code", "what is it?", user=user, tenant="acme")

    run = drive(run)

    assert types() == ["workflow.started", "run.started", "run.completed"]
    first, began, ended = told()
    whose = {"run": str(run.id), "thread": str(run.session_id), "agent": "test/code", "root": None, "parent": None}
    whose |= {"owner": str(user.pk), "tenant": "acme"}
    assert first.data == {**whose, "user_content": "what is it?"}
    assert began.data == whose
    assert ended.data == {**whose, "output": "fine"}
    assert {event.correlation_id for event in told()} == {str(run.id)}
    assert {(event.source, event.schema_version) for event in told()} == {("ravi", 1)}
    assert len({event.id for event in told()}) == 3
    assert abs((first.ts - run.created_at).total_seconds()) < 1
    assert len(hints) >= 2


def test_a_failure_says_what_it_was(hints: list[int]) -> None:
    code(breaks)
    run = drive(make_run())

    assert types(run) == ["workflow.started", "run.started", "run.failed"]
    assert (told()[-1].data["error"], told()[-1].data["message"]) == ("ValueError", "api says no")

    world.retry(run.id)
    assert types(run)[3:] == ["run.retried"]
    drive(run)
    assert types(run)[3:] == ["run.retried", "run.failed"]


def test_a_cancelled_run_says_why_and_a_blocked_one_waits_for_an_operator(hints: list[int]) -> None:
    run = make_run()
    world.cancel(run.id, "not wanted")
    assert types(run) == ["workflow.started", "run.cancelled"]
    assert told()[-1].data["reason"] == "not wanted"

    lease = leased()
    entry = Entry("run.blocked", "@blocked.1", error={"type": "DeterminismError", "message": "another call"})
    world.journal_block(lease, [entry], error=entry.error or {})
    assert types(lease.run) == ["workflow.started", "run.blocked"]
    assert told()[-1].data["error"] == "DeterminismError"


def test_a_long_text_is_cut(hints: list[int]) -> None:
    async def talks(ctx: Any, inbox: Any) -> str:
        return "ä\0" * 5000

    code(talks)
    drive(make_run(text="ö" * 5000))

    for event, name in ((told()[0], "user_content"), (told()[-1], "output")):
        assert MAX_TEXT - 8 < len(event.data[name].encode()) <= MAX_TEXT
        assert event.data[name].endswith("…")


def test_children_are_told_of_with_their_root(hints: list[int]) -> None:
    async def parent(ctx: Any, inbox: Any) -> str:
        child = await ctx.spawn("test/child", "help")
        await ctx.join(child)
        return "done"

    code(parent)
    register(CodeAgent(answers, key="child"))
    run = drive(make_run())
    child = Run.objects.get(parent=run)
    drive(child)
    drive(run)

    assert types(child) == ["run.started", "run.completed"]
    assert {(e.data["root"], e.data["parent"]) for e in told(child)} == {(str(run.id), str(run.id))}
    assert types(run) == ["workflow.started", "run.started", "run.completed"]


def test_a_fork_is_a_run_too_and_one_that_begins_anew_has_begun_once(hints: list[int]) -> None:
    code(steps, model=MODEL)
    run = drive(make_run(text="question"))
    OutboxEvent.objects.all().delete()

    new = world.fork(run.id, run.next_seq - 1)
    drive(new)

    assert types(new) == ["workflow.started", "run.started", "run.completed"]
    assert told()[0].data["user_content"] == "question"

    async def again(ctx: Any, inbox: Any) -> str:
        if inbox and inbox[0].payload.message.text == "hi":
            await ctx.continue_as_new("more")
        return "end"

    code(again)
    run = drive(drive(make_run()))
    assert run.status == Status.COMPLETED, run.error
    assert types(run) == ["workflow.started", "run.started", "run.completed"]


# ------------------------------------------------------------------------------------------------- of a crash


def test_who_takes_over_from_a_dead_worker_says_so(hints: list[int]) -> None:
    with FakeClock() as clock:
        code(steps, model=MODEL)
        run = make_run()
        drive(run, dies=1)
        dead = Run.objects.get(id=run.id).lease_owner
        run = take_over(clock, run)

        assert types(run) == ["workflow.started", "agent.crashed", "run.started", "run.completed"]
        event = told()[1]
        assert (event.data["worker"], event.data["crashes"]) == (dead, 1)
        claimed = Run(
            **{f.attname: getattr(run, f.attname) for f in Run._meta.concrete_fields if f.attname != "crashes"},
            crashes=1,
        )
        by_code = world.of_crash(claimed, dead)
        assert event.model_dump(exclude={"ts"}) == by_code.model_dump(exclude={"ts"})


@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["claim", "claim_next"])
def test_each_crash_is_told_once(hints: list[int], how: str) -> None:
    with FakeClock() as clock:
        run = leased().run
        for _ in range(2):
            clock.advance(100)
            found = world.claim(run.id, "next") if how == "claim" else world.claim_next("next", ["test/code"])
            assert found
        assert not world.claim(run.id, "other")
        world.requeue(found)
        assert world.claim(run.id, "third") is not None, "which is no crash again"

        assert [event.data["crashes"] for event in told(run)[1:]] == [1, 2]
        assert len({event.id for event in told(run)}) == 3


@on_postgresql
def test_a_run_that_was_given_back_meanwhile_has_not_crashed(hints: list[int]) -> None:
    """The claim begins while the run is a dead worker's, and gets it from one that was alive after all."""
    with FakeClock() as clock:
        run = leased().run
        clock.advance(100)
        alive = world.claim(run.id, "slow")  # the first crash
        assert alive is not None
        clock.advance(100)
        with transaction.atomic():
            world.requeue(alive)
            claiming = in_background(world.claim, run.id, "next")
            until(somebody_waits_for_a_lock)
        lease = claiming.result(BOUND_S)

        assert lease is not None and lease.run.crashes == 1
        assert types(run) == ["workflow.started", "agent.crashed"]
