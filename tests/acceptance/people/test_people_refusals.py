"""Answers that nobody may give, or that nobody would read: of finished and cancelled runs, and of other customers'."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.kernel import ConflictError, ForbiddenError, NotFoundError
from ravi_django.models import Run, Status
from tests.acceptance.people.desk import desk, waiting
from tests.support import world
from tests.support.runs import drive, make_run
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_cancelled_runs_request_is_not_answered(paid: list[str], pay: Any, finance: list[Any]) -> None:
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]
    cancel(run.id, "no")

    with pytest.raises(ConflictError, match="cancelled already"):
        world.answer(request, "approve", by=finance[0])

    assert paid == []


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_finished_runs_request_is_not_answered(paid: list[str], pay: Any, finance: list[Any], status: Status) -> None:
    """Should a row ever be left open by a run that has ended."""
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk"))
    request = waiting(run)["ACME"]
    Run.objects.filter(id=run.id).update(status=status)

    with pytest.raises(ConflictError, match=f"is {status.value} already; nobody would read the answer"):
        world.answer(request, "approve", by=finance[0])

    request.refresh_from_db()
    assert (request.status, request.answer) == ("pending", None)


def test_another_tenants_request_is_not_there(
    paid: list[str], pay: Any, finance: list[Any], django_user_model: Any, settings: Any
) -> None:
    """Of the same group, but of another customer; and the owner, who may read it, may not decide on it."""
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: {"ann": "north"}.get(user.username, "south")}
    owner = django_user_model.objects.create_user("owner")
    desk(pay, {"c0": {"to": "ACME", "amount": 1}})
    run = drive(make_run("react/desk", tenant="north", owner=owner))
    request = waiting(run)["ACME"]

    with pytest.raises(NotFoundError):
        world.answer(request, "approve", by=finance[1])
    with pytest.raises(ForbiddenError):
        world.answer(request, "approve", by=owner)
    world.answer(request, "approve", by=finance[0])

    assert drive(run).status == Status.COMPLETED
    assert paid == ["ACME 1"]
