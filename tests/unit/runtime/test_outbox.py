"""The event bus's outbox: what a run, a request and a site leave there, in whose transaction, and at what cost."""

from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import register, submit
from ravi_django.kernel import BudgetExhaustedError, ChatMessage, Event, LeaseLostError, SecretRefusedError
from ravi_django.kernel.event_types import MAX_TEXT
from ravi_django.models import HumanRequest, OutboxEvent, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.outboxes import MODEL, answers, steps, told, types
from tests.support.patience import BOUND_S
from tests.support.runs import (
    CodeAgent,
    asked,
    claim_next,
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
from tests.support.world import Entry, append_repeatable, enqueue, relay_event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite
def test_a_run_says_that_it_was_asked_for_began_and_ended(hints: list[int], django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("ann")
    code(answers)
    run = drive(submit("test/code", "what is it?", user=user, tenant="acme"))
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
    async def breaks(ctx: Any, inbox: Any) -> str:
        raise ValueError("api says no")

    code(breaks)
    run = drive(make_run())
    assert types(run) == ["workflow.started", "run.started", "run.failed"]
    assert (told()[-1].data["error"], told()[-1].data["message"]) == ("ValueError", "api says no")
    world.retry(run.id)
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
        if inbox:
            await ctx.continue_as_new()
        return "end"

    code(again)
    run = drive(drive(make_run()))
    assert run.status == Status.COMPLETED, run.error
    assert types(run) == ["workflow.started", "run.started", "run.completed"]


# ------------------------------------------------------------------------------------------------- of a crash


def test_who_takes_over_from_a_dead_worker_says_so(hints: list[int], clock: FakeClock) -> None:
    code(steps, model=MODEL)
    run = drive(make_run(), dies=1)
    dead = run.lease_owner
    run = take_over(clock, run)
    assert types(run) == ["workflow.started", "agent.crashed", "run.started", "run.completed"]
    event = told()[1]
    assert (event.data["worker"], event.data["crashes"]) == (dead, 1)
    run.crashes = 1
    by_code = world.of_crash(run, dead)
    assert event.model_dump(exclude={"ts"}) == by_code.model_dump(exclude={"ts"})


@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["claim", "claim_next"])
def test_each_crash_is_told_once(hints: list[int], how: str, clock: FakeClock) -> None:
    run = leased().run
    for _ in range(2):
        clock.advance(100)
        found = world.claim(run.id, "next") if how == "claim" else claim_next("next", ["test/code"])
        assert found
    assert not world.claim(run.id, "other")
    world.requeue(found)
    assert world.claim(run.id, "third") is not None, "which is no crash again"
    assert [event.data["crashes"] for event in told(run)[1:]] == [1, 2]
    assert len({event.id for event in told(run)}) == 3


@on_postgresql
def test_a_run_that_was_given_back_meanwhile_has_not_crashed(hints: list[int], clock: FakeClock) -> None:
    """The claim begins while the run is a dead worker's, and gets it from one that was alive after all."""
    run = leased().run
    clock.advance(100)
    alive = leased(run, "slow")  # the first crash
    clock.advance(100)
    with transaction.atomic():
        world.requeue(alive)
        claiming = in_background(world.claim, run.id, "next")
        until(somebody_waits_for_a_lock)
    lease = claiming.result(BOUND_S)
    assert lease is not None and lease.run.crashes == 1
    assert types(run) == ["workflow.started", "agent.crashed"]


def _approval(run: Run, **fields: Any) -> HumanRequest:
    lease = leased(run)
    made = HumanRequest(
        run=run, path="0", kind="approval", tool="refund", text="refund?", owner=run.owner, tenant=run.tenant, **fields
    )
    world.open_request(lease, [Entry("request.opened", "@request.0.1")], request=made)
    return made


def test_what_is_rolled_back_was_never_told(hints: list[int]) -> None:
    code(answers)
    with pytest.raises(RuntimeError), transaction.atomic():
        submit("test/code", "never mind")
        enqueue(Event.create("shop.sold", source="shop", number=1))
        assert len(told()) == 2
        raise RuntimeError
    assert told() == []
    assert hints == []


def test_a_zombie_tells_nothing(hints: list[int], clock: FakeClock) -> None:
    zombie = leased()
    clock.advance(100)
    assert world.claim(zombie.run_id, "next") is not None
    OutboxEvent.objects.all().delete()
    entries = [Entry("run.started", "@started"), Entry("run.completed", "@completed.1")]
    for write in (world.append, partial(world.finish, status=Status.COMPLETED, output="x")):
        with pytest.raises(LeaseLostError):
            write(zombie, entries=entries)
    assert told() == []


@on_postgresql
def test_a_repeated_append_tells_once_and_many_rows_through_the_orm_the_same(hints: list[int]) -> None:
    lease, many = leased(), leased()
    entries = [Entry("run.started", "@started"), Entry("log", "0")]
    for _ in range(2):
        append_repeatable(lease, entries, [])
    rows = [Entry("log", f"{number}") for number in range(world.MAX_ROWS)]
    world.fence_append(many, [Entry("run.started", "@started"), *rows], [])
    for run in (lease.run, many.run):
        assert types(run) == ["workflow.started", "run.started"]


def statements_of_a_run(settings: Any, bus: str | None) -> list[str]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": bus}
    with CaptureQueriesContext(connection) as found:
        lease = leased()
        world.append(lease, [Entry("run.started", "@started"), Entry("tool.call", "0", "t")])
        world.append(lease, [Entry("tool.call", "1", "t")])
        world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="x")
    return [query["sql"] for query in found.captured_queries]


def test_without_a_bus_nothing_is_asked_or_written(settings: Any, hints: list[int]) -> None:
    off = statements_of_a_run(settings, None)
    request = _approval(make_run())
    world.answer_request(request.id, {"action": "approve", "by": "ann"}, by=None)
    assert enqueue(Event.create("shop.sold", source="shop")) is False
    assert not any("outbox" in sql for sql in off)
    assert (OutboxEvent.objects.count(), hints) == (0, [])


@on_postgresql
def test_a_runs_events_ride_on_its_statements(settings: Any, hints: list[int]) -> None:
    """Not one round trip more, and the statements of what is no event are the same."""
    off, on = statements_of_a_run(settings, None), statements_of_a_run(settings, "memory")
    assert len(on) == len(off)
    assert sum("outbox" in sql for sql in on) == 4  # submit, claim, first append, end
    assert types() == ["workflow.started", "run.started", "run.completed"]


# ------------------------------------------------------------------------------------------ of people and budgets


def test_a_question_is_told_with_its_answer(hints: list[int], django_user_model: Any) -> None:
    async def asks(ctx: Any, inbox: Any) -> str:
        return str(await ctx.ask_human("which one?", choices=["a", "b"]))

    user = django_user_model.objects.create_user("ann")
    code(asks)
    run = drive(make_run(owner=user))
    request = asked(run)
    world.answer(request.id, by=user, action="answer", text="b")
    drive(run)

    assert types(run) == ["workflow.started", "run.started", "hitl.requested", "hitl.answered", "run.completed"]
    opened, answered = told()[2:4]
    assert (opened.data["request"], opened.data["kind"]) == (str(request.id), "question")
    assert opened.data["text"] == "which one?"
    assert (answered.data["text"], answered.data["by"], answered.data["request"]) == ("b", "ann", str(request.id))


ANSWERS = {"approve": "approved", "edit": "approved", "deny": "denied", "skip": "denied", "cancel": "closed"}


@pytest.mark.parametrize("action", ANSWERS)
def test_an_approval_is_approved_or_denied(hints: list[int], action: str) -> None:
    run = make_run(tenant="acme")
    request = _approval(run, arguments={"api_key": "sk-very-secret"})
    with CaptureQueriesContext(connection) as found:
        world.answer_request(request.id, {"action": action, "reason": "because", "by": "ann"}, by=None)
    opened, answered = told(run)[1:]
    assert (opened.type, answered.type) == ("hitl.requested", f"hitl.{ANSWERS[action]}")
    assert (answered.data["tool"], answered.data["tenant"]) == ("refund", "acme")
    assert "sk-very-secret" not in str(told())
    reads = [query for query in found.captured_queries if 'FROM "ravi_run"' in query["sql"]]
    assert len(reads) == 1, "what is said of the run comes with the row that is locked anyway"


def test_a_request_that_ends_with_its_run_is_closed(hints: list[int]) -> None:
    run = make_run()
    request = _approval(run)
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED, lease_owner="")
    world.cancel(run.id, "over")
    assert types(run) == ["workflow.started", "hitl.requested", "run.cancelled", "hitl.closed"]
    assert told(run)[-1].data["status"] == "cancelled"
    assert told(run)[-1].data["request"] == str(request.id)


# ------------------------------------------------------------------------------------------------- of budgets


def test_an_exhausted_budget_is_told(hints: list[int]) -> None:
    async def spends(ctx: Any, inbox: Any) -> str:
        for _ in range(3):
            try:
                await ctx.llm([ChatMessage.of("user", "hi")])
            except BudgetExhaustedError:
                return "stopped"
        return "went on"

    code(spends, model=MODEL)
    run = drive(make_run(budget={"max_turns": 1}))

    assert run.output == "stopped", run.error
    assert types(run) == ["workflow.started", "run.started", "budget.exhausted", "run.completed"]
    assert told()[2].data["account"] == f"tree:{run.id}"
    assert "max_turns" in told()[2].data["message"]


# ------------------------------------------------------------------------------------------- a site's own events


def test_a_site_tells_of_its_own_changes_but_no_password(hints: list[int]) -> None:
    event = Event.create("shop.sold", source="shop", correlation_id="order-1", amount=3)
    with pytest.raises(SecretRefusedError, match=r"data\.password"):
        enqueue(Event.create("user.made", source="shop", password="x"))
    assert enqueue(event, "shop") is True
    (row,) = OutboxEvent.objects.all()
    found = relay_event(row)
    assert row.topic == "shop"
    assert found is not None and found.model_dump(exclude={"ts"}) == event.model_dump(exclude={"ts"})
    assert hints == [1]
