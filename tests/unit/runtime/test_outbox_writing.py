"""The event bus's outbox: in whose transaction it is written, at what cost, and what it is told of people."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import submit
from ravi_django.kernel import BudgetExhaustedError, ChatMessage, Event, LeaseLostError, SecretRefusedError
from ravi_django.models import HumanRequest, OutboxEvent, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.outboxes import MODEL, answers, told, types
from tests.support.runs import (
    asked,
    code,
    drive,
    leased,
    make_run,
    on_postgresql,
)
from tests.support.world import Entry, append_repeatable, enqueue, relay_event

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_a_zombie_tells_nothing(hints: list[int]) -> None:
    with FakeClock() as clock:
        zombie = leased()
        clock.advance(100)
        assert world.claim(zombie.run_id, "next") is not None
        OutboxEvent.objects.all().delete()
        entry = Entry("run.completed", "@completed.1")
        for write in (world.append, partial(world.finish, status=Status.COMPLETED, output="x")):
            with pytest.raises(LeaseLostError):
                write(zombie, entries=[Entry("run.started", "@started"), entry])

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


def _statements(settings: Any, bus: str | None, work: Any) -> list[str]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": bus}
    with CaptureQueriesContext(connection) as found:
        work()
    return [query["sql"] for query in found.captured_queries]


def _one_run() -> None:
    run = make_run()
    lease = leased(run)
    world.append(lease, [Entry("run.started", "@started"), Entry("tool.call", "0", "t")])
    world.append(lease, [Entry("tool.call", "1", "t")])
    world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="x")


def test_without_a_bus_nothing_is_asked_or_written(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hinted: list[int] = []
    world.patch(monkeypatch, "courier_hint", lambda: hinted.append(1))

    off = _statements(settings, None, _one_run)
    request = _approval(make_run())
    world.answer_request(request.id, {"action": "approve", "by": "ann"}, by=None)

    assert not any("outbox" in sql for sql in off)
    assert OutboxEvent.objects.count() == 0
    assert hinted == []
    assert enqueue(Event.create("shop.sold", source="shop")) is False
    assert OutboxEvent.objects.count() == 0


@on_postgresql
def test_a_runs_events_ride_on_its_statements(settings: Any, hints: list[int]) -> None:
    """Not one round trip more, and the statements of what is no event are the same."""
    off = _statements(settings, None, _one_run)
    on = _statements(settings, "memory", _one_run)

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
    assert {key: opened.data[key] for key in ("request", "kind", "text")} == {
        "request": str(request.id),
        "kind": "question",
        "text": "which one?",
    }
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
