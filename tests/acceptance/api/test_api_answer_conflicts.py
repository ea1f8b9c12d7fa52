"""POST requests/{id}/answer/ and reassign/: once, in time, and of what was read."""

from __future__ import annotations

from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone
from rest_framework.test import APIClient

from ravi_django.models import AuditRecord, HumanRequest, Run, Status
from tests.acceptance.api.api_support import AGENT, client_of, decide, error_of, is_open
from tests.support import world
from tests.support.asked import approval_of, asked_by
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, on_postgresql
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
@pytest.mark.parametrize("version", [0, 2, -1, 10**30])
def test_an_answer_to_what_was_not_read_is_409(staff: Any, run: Run, version: int) -> None:
    request = approval_of(run)

    response = decide(client_of(staff), request, {"action": "approve", "version": version})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
    assert is_open(request)


@pytest.mark.django_db
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_of_an_ended_run_nothing_is_answered(client: APIClient, run: Run, status: Status) -> None:
    request = asked_by(run)
    Run.objects.filter(id=run.id).update(status=status)

    response = decide(client, request, {"action": "answer", "text": "red"})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
    assert is_open(request)


@pytest.mark.django_db
def test_a_run_that_is_cancelled_closes_what_it_asked(client: APIClient, run: Run) -> None:
    request = asked_by(run)
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED)
    assert client.post(f"/ravi/runs/{run.id}/cancel/", {}, format="json").status_code == 202

    response = decide(client, request, {"action": "answer", "text": "red"})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
    assert client.get(f"{LIST}{request.id}/").json()["status"] == "cancelled"


@pytest.mark.django_db
@pytest.mark.parametrize("asked", [{"expires_at": -1}, {"not_before": 3600}])
def test_neither_too_late_nor_too_early(client: APIClient, run: Run, asked: dict[str, int]) -> None:
    moments = {name: timezone.now() + timedelta(seconds=seconds) for name, seconds in asked.items()}
    request = asked_by(run, **moments)

    response = decide(client, request, {"action": "answer", "text": "red"})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
    assert is_open(request)


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told(user: Any, django_user_model: Any) -> None:
    people = [django_user_model.objects.create_user(name, is_staff=True) for name in ("carla", "dora")]
    run = submit(AGENT, "hi", user=user)
    for _ in range(10):
        request = approval_of(run)
        together = Barrier(2, timeout=BOUND_S)

        def approve(who: Any, request: HumanRequest = request, together: Barrier = together) -> Any:
            client = client_of(who)
            together.wait()
            return decide(client, request, {"action": "approve", "version": 1})

        found = [future.result(BOUND_S) for future in [in_background(approve, who) for who in people]]

        assert sorted(response.status_code for response in found) == [200, 409]
        won = next(response.json()["answered_by"] for response in found if response.status_code == 200)
        (lost,) = [error_of(response) for response in found if response.status_code == 409]
        assert won in lost["message"]
        request.refresh_from_db()
        assert (request.answer["by"], request.answered_by.username, request.version) == (won, won, 2)
    assert AuditRecord.objects.filter(run_id=run.id, name="answered").count() == 10


# ------------------------------------------------------------------------------------------------- reassign


@pytest.mark.django_db
def test_who_may_answer_may_pass_it_on(client: APIClient, staff: Any, stranger: Any, run: Run) -> None:
    request = approval_of(run, "user:carla")

    response = decide(client_of(staff), request, {"to": "user:bob", "reason": "His."}, "reassign")

    assert response.status_code == 200
    shown = response.json()
    assert (shown["to"], shown["status"], shown["version"], shown["may_answer"]) == ("user:bob", "pending", 2, False)
    assert client_of(staff).get(f"{LIST}{request.id}/").status_code == 404
    late = decide(client, request, {"action": "approve"})
    assert late.status_code == 403
    assert decide(client_of(stranger), request, {"action": "approve", "version": 1}).status_code == 409
    assert decide(client_of(stranger), request, {"action": "approve", "version": 2}).status_code == 200


@pytest.mark.django_db
def test_who_may_not_answer_passes_nothing_on(client: APIClient, strange_client: APIClient, run: Run) -> None:
    request = approval_of(run)

    for who, status in ((client, 403), (strange_client, 404), (client_of(), 401)):
        assert decide(who, request, {"to": "user:bob"}, "reassign").status_code == status

    assert is_open(request)


@pytest.mark.django_db
def test_an_operator_of_the_site_passes_on_what_they_may_not_answer(
    stranger: Any, run: Run, django_user_model: Any, settings: Any
) -> None:
    operator = django_user_model.objects.create_user("olga", is_staff=True)
    request = approval_of(run, "user:carl")
    client, body = client_of(operator), {"to": "user:bob"}

    for codename in ("change_humanrequest", "view_humanrequest"):  # both are needed
        assert decide(client, request, body, "reassign").status_code == 404
        operator.user_permissions.add(Permission.objects.get(codename=codename))
    assert decide(client, request, {"to": "user:olga"}, "reassign").status_code == 403
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "acme"}
    assert decide(client, request, body, "reassign").status_code == 404
    settings.RAVI = {**settings.RAVI, "TENANT_OF": None}

    response = decide(client, request, body, "reassign")

    assert response.status_code == 200, response.content
    assert (response.json()["to"], response.json()["may_answer"]) == ("user:bob", False)
    assert decide(client, request, {"action": "approve"}).status_code in (403, 404)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "to"),
        ({"to": ""}, "to"),
        ({"to": "bob"}, "to"),
        ({"to": "user:nobody-of-that-name"}, "to"),
        ({"to": 5}, "to"),
        ({"to": ["user:bob"]}, "to"),
        ({"to": {"to": "user:bob"}}, "to"),
        ({"to": "user:" + "x" * 300}, "to"),
        ({"to": "user:bob", "reason": 5}, "reason"),
        ({"to": "user:bob", "version": "1"}, "version"),
        ({"to": "user:bob", "four_eyes": False}, "four_eyes"),
    ],
)
def test_a_bad_address_is_named(staff: Any, stranger: Any, run: Run, body: Any, field: str) -> None:
    request = approval_of(run)

    response = decide(client_of(staff), request, body, "reassign")

    assert (response.status_code, error_of(response)["field"]) == (400, field)
    assert is_open(request)


@pytest.mark.django_db
def test_what_is_decided_or_has_changed_is_not_passed_on(staff: Any, stranger: Any, run: Run) -> None:
    request, decided = approval_of(run, "user:carla"), approval_of(run)
    world.answer(decided, "deny", by=staff)

    for row, body in ((request, {"to": "user:bob", "version": 7}), (decided, {"to": "user:bob"})):
        response = decide(client_of(staff), row, body, "reassign")
        assert (response.status_code, error_of(response)["code"]) == (409, "conflict")

    assert is_open(request)
