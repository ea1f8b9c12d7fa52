"""The event bus's outbox: what it is told of requests to people, and of budgets."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.kernel import BudgetExhaustedError, ChatMessage
from ravi_django.models import HumanRequest, Run, Status
from tests.support import world
from tests.support.outboxes import MODEL, told, types
from tests.support.runs import (
    asked,
    code,
    drive,
    leased,
    make_run,
)
from tests.support.world import Entry

pytestmark = pytest.mark.django_db(transaction=True)


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


def _approval(run: Run, **fields: Any) -> HumanRequest:
    lease = leased(run)
    made = HumanRequest(
        run=run, path="0", kind="approval", tool="refund", text="refund?", owner=run.owner, tenant=run.tenant, **fields
    )
    world.open_request(lease, [Entry("request.opened", "@request.0.1")], request=made)
    return made


@pytest.mark.parametrize(
    ("action", "type"),
    [
        ("approve", "hitl.approved"),
        ("edit", "hitl.approved"),
        ("deny", "hitl.denied"),
        ("skip", "hitl.denied"),
        ("cancel", "hitl.closed"),
    ],
)
def test_an_approval_is_approved_or_denied(hints: list[int], action: str, type: str) -> None:
    run = make_run(tenant="acme")
    request = _approval(run, arguments={"api_key": "sk-very-secret"})
    world.answer_request(request.id, {"action": action, "reason": "because", "by": "ann"}, by=None)

    opened, answered = told(run)[1:]
    assert (opened.type, answered.type) == ("hitl.requested", type)
    assert (answered.data["tool"], answered.data["tenant"]) == ("refund", "acme")
    assert "sk-very-secret" not in str(told())


def test_a_request_that_ends_with_its_run_is_closed(hints: list[int]) -> None:
    run = make_run()
    request = _approval(run)
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED, lease_owner="")
    world.cancel(run.id, "over")

    assert types(run) == ["workflow.started", "hitl.requested", "run.cancelled", "hitl.closed"]
    assert told(run)[-1].data["status"] == "cancelled"
    assert told(run)[-1].data["request"] == str(request.id)


def test_an_answer_reads_nothing_more_of_the_run(hints: list[int]) -> None:
    """What the event says of the run comes with the row that is locked anyway."""
    request = _approval(make_run())

    with CaptureQueriesContext(connection) as found:
        world.answer_request(request.id, {"action": "approve", "by": "ann"}, by=None)

    reads = [query for query in found.captured_queries if 'FROM "ravi_run"' in query["sql"]]
    assert len(reads) == 1, reads


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
