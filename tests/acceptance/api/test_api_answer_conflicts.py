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


@pytest.mark.django_db
def test_a_run_that_is_cancelled_closes_what_it_asked(client: APIClient, run: Run) -> None:
    request = asked_by(run)
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED)
    assert client.post(f"/ravi/runs/{run.id}/cancel/", {}, format="json").status_code == 202

    response = decide(client, request, {"action": "answer", "text": "red"})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
    assert client.get(f"{LIST}{request.id}/").json()["status"] == "cancelled"


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told(user: Any, root: Any, staff: Any) -> None:
    run = submit(AGENT, "hi", user=user)
    for _ in range(10):
        request = approval_of(run)
        together = Barrier(2, timeout=BOUND_S)

        def approve(who: Any, request: HumanRequest = request, together: Barrier = together) -> Any:
            client = client_of(who)
            together.wait()
            return decide(client, request, {"action": "approve", "version": 1})

        asked = [in_background(approve, who) for who in (root, staff)]
        won, lost = sorted((future.result(BOUND_S) for future in asked), key=lambda found: int(found.status_code))

        assert (won.status_code, lost.status_code) == (200, 409)
        assert won.json()["answered_by"] in error_of(lost)["message"]
        request.refresh_from_db()
        assert (request.answer["by"], request.version) == (won.json()["answered_by"], 2)
    assert AuditRecord.objects.filter(run_id=run.id, name="answered").count() == 10


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
