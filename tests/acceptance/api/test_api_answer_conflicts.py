"""POST requests/{id}/answer/ and reassign/: once, in time, and of what was read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from ravi_django.models import HumanRequest, Run, Status
from tests.acceptance.api.api_support import AGENT, client_of, decide, error_of, is_open
from tests.support import world
from tests.support.asked import approval_of, asked_by
from tests.support.world import submit

LIST = "/ravi/requests/"


@pytest.fixture
def run(user: Any) -> Run:
    return submit(AGENT, "hi", user=user)


# ------------------------------------------------------------------------------------------------- conflicts


@pytest.mark.django_db
def test_every_later_answer_is_told_who_was_first(client: APIClient, staff: Any, root: Any, run: Run) -> None:
    request = approval_of(run)
    assert decide(client_of(staff), request, {"action": "deny"}).status_code == 200

    for who in (staff, root):
        for body in ({"action": "approve"}, {"action": "deny"}, {"action": "approve", "version": 2}):
            response = decide(client_of(who), request, body)
            assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
            assert "carla" in error_of(response)["message"]

    assert decide(client, request, {"action": "approve"}).status_code == 403
    assert client.get(f"{LIST}{request.id}/").json()["answer"]["action"] == "deny"


@pytest.mark.django_db
def test_an_answer_to_what_was_not_read_or_not_in_time_is_409(client: APIClient, run: Run) -> None:
    soon, past = timezone.now() + timedelta(hours=1), timezone.now() - timedelta(seconds=1)
    request, early, late = asked_by(run), asked_by(run, not_before=soon), asked_by(run, expires_at=past)
    said = {"action": "answer", "text": "red"}

    def conflict(asked: HumanRequest, **more: Any) -> None:
        response = decide(client, asked, {**said, **more})
        assert (response.status_code, error_of(response)["code"], is_open(asked)) == (409, "conflict", True), more

    for version in (0, 2, -1, 10**30):
        conflict(request, version=version)
    conflict(early)
    conflict(late)
    for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
        Run.objects.filter(id=run.id).update(status=status)
        conflict(request, reason=status)


# ------------------------------------------------------------------------------------------------- reassign


@pytest.mark.django_db
def test_who_may_answer_may_pass_it_on(client: APIClient, staff: Any, stranger: Any, run: Run) -> None:
    request = approval_of(run, "user:carla")
    for who, status in ((client, 403), (client_of(stranger), 404), (client_of(), 401)):
        assert decide(who, request, {"to": "user:bob"}, "reassign").status_code == status
    assert is_open(request)

    response = decide(client_of(staff), request, {"to": "user:bob", "reason": "His."}, "reassign")

    assert response.status_code == 200
    shown = response.json()
    assert (shown["to"], shown["status"], shown["version"], shown["may_answer"]) == ("user:bob", "pending", 2, False)
    assert client_of(staff).get(f"{LIST}{request.id}/").status_code == 404
    assert decide(client, request, {"action": "approve"}).status_code == 403
    assert decide(client_of(stranger), request, {"action": "approve", "version": 1}).status_code == 409
    assert decide(client_of(stranger), request, {"action": "approve", "version": 2}).status_code == 200


@pytest.mark.django_db
def test_what_is_not_passed_on(staff: Any, stranger: Any, run: Run) -> None:
    request, decided, client = approval_of(run, "user:carla"), approval_of(run), client_of(staff)
    world.answer(decided, "deny", by=staff)
    bad = [({"to": to}, "to") for to in ("", "bob", "user:nobody", 5, ["user:bob"], {"to": "x"}, "user:" + "x" * 300)]
    bad += [({}, "to")]
    bad += [({"to": "user:bob", name: value}, name) for name, value in (("reason", 5), ("version", "1"), ("x", 1))]

    for body, field in bad:
        response = decide(client, request, body, "reassign")
        assert (response.status_code, error_of(response)["field"]) == (400, field), body
    for row, more in ((request, {"version": 7}), (decided, {})):
        response = decide(client, row, {"to": "user:bob", **more}, "reassign")
        assert (response.status_code, error_of(response)["code"]) == (409, "conflict"), response.content
    assert is_open(request)
