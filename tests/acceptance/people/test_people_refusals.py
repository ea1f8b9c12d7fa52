"""Answers that nobody may give: of other customers' requests."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.kernel import ForbiddenError, NotFoundError
from ravi_django.models import Status
from tests.acceptance.people.desk import desk, waiting
from tests.support import world
from tests.support.runs import drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


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
