"""GET requests/ and requests/{id}/: what people are asked, for those who may answer and for the run's owner."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone
from rest_framework.test import APIClient

from ravi_django.models import Delegation, HumanRequest, Run
from tests.acceptance.api.api_support import AGENT, client_of, error_of
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import queries_of
from tests.support.world import submit

pytestmark = pytest.mark.django_db
LIST = "/ravi/requests/"
NOBODYS = UUID(int=7)


def ids(client: APIClient, query: str = "") -> list[str]:
    response = client.get(LIST + query)
    assert response.status_code == 200, response.content
    return [row["id"] for row in response.json()["results"]]


def test_a_request_is_shown_whole(client: APIClient, user: Any, staff: Any, run: Run) -> None:
    soon = timezone.now() + timedelta(hours=4)
    details = {"context": "<b>Late</b>", "description": "Pays.", "schema": {"type": "object"}}
    request = approval_of(run, [("staff", 3600), "user:boss"], details=details, expires_at=soon)

    (shown,) = client.get(LIST).json()["results"]

    assert {**shown, "description": "Pays.", "schema": {"type": "object"}} == client.get(f"{LIST}{request.id}/").json()
    created, escalates = (shown.pop(name) for name in ("created_at", "escalates_at"))
    assert created.endswith("Z") and escalates.endswith("Z") and created < escalates < shown["expires_at"]
    assert shown == {
        "id": str(request.id),
        "run": str(run.id),
        "root": str(run.id),
        "agent": AGENT,
        "kind": "approval",
        "status": "pending",
        "text": "Pay?",
        "choices": None,
        "tool": "pay",
        "arguments": {"to": "ACME", "amount": 100},
        "risk": "high",
        "context": "<b>Late</b>",
        "free_text": True,
        "questions": None,
        "to": "staff",
        "may_answer": False,
        "actions": [],
        "not_before": None,
        "expires_at": soon.isoformat().replace("+00:00", "Z"),
        "answer": None,
        "answered_by": None,
        "answered_at": None,
        "version": 1,
    }
    theirs = client_of(staff).get(f"{LIST}{request.id}/").json()
    assert (theirs["may_answer"], theirs["actions"]) == (True, ["approve", "deny", "edit", "skip", "cancel"])


def test_a_question_shows_how_to_answer_it(client: APIClient, run: Run) -> None:
    asked_by(run, choices=["red", "blue"], details={"context": "For the door.", "free_text": False})
    asked_by(run, Kind.INPUT, tool="paint", details={"questions": {"colour": "Which?"}})

    several, one = client.get(LIST).json()["results"]

    assert (one["choices"], one["context"], one["free_text"]) == (["red", "blue"], "For the door.", False)
    assert (one["to"], one["may_answer"], one["actions"]) == ("owner", True, ["answer", "skip", "cancel"])
    assert (several["kind"], several["tool"], several["questions"]) == ("input", "paint", {"colour": "Which?"})


def test_what_was_decided_is_kept_in_sight_of_the_owner(client: APIClient, staff: Any, run: Run) -> None:
    request, answered = approval_of(run), asked_by(run)
    world.answer(request, "edit", arguments={"to": "ACME", "amount": 7}, reason="Too much.", by=staff)
    world.answer(answered, text="red")  # by the operator
    staff.delete()

    shown = client.get(f"{LIST}{request.id}/").json()
    nobodys = client.get(f"{LIST}{answered.id}/").json()

    assert (shown["status"], shown["answered_by"], shown["version"]) == ("answered", "carla", 2)
    assert shown["answered_at"].endswith("Z")
    assert (shown["may_answer"], shown["actions"]) == (False, [])
    assert shown["arguments"] == {"to": "ACME", "amount": 100}
    changed = {"to": "ACME", "amount": 7}
    assert shown["answer"] == {"action": "edit", "reason": "Too much.", "arguments": changed, "by": "carla"}
    assert (nobodys["status"], nobodys["answered_by"], nobodys["answer"]["by"]) == ("answered", None, "")
    for status in ("cancelled", "expired"):
        closed = asked_by(run)
        HumanRequest.objects.filter(id=closed.id).update(status=status, answered_at=timezone.now())
        shown = client.get(f"{LIST}{closed.id}/").json()
        assert (shown["status"], shown["answer"], shown["answered_at"], shown["actions"]) == (status, None, None, [])


def test_what_would_be_refused_is_not_offered(client: APIClient, run: Run) -> None:
    now = timezone.now()
    early, late = ({"not_before": now + timedelta(minutes=1)}, {"expires_at": now - timedelta(minutes=1)})
    for untimely in (early, late, {}):
        request = asked_by(run)
        HumanRequest.objects.filter(id=request.id).update(**untimely)
        if not untimely:
            Run.objects.filter(id=run.id).update(status="failed")

        shown = client.get(f"{LIST}{request.id}/").json()
        refused = client.post(f"{LIST}{request.id}/answer/", {"action": "skip"}, format="json")

        assert (shown["status"], shown["may_answer"], shown["actions"]) == ("pending", False, []), untimely
        assert refused.status_code == 409, untimely
        assert client.get(LIST).json()["results"][0]["actions"] == [], untimely


# --------------------------------------------------------------------------------------------------- whose


def test_who_sees_what_and_who_may_answer_it(user, stranger, staff, root, run, django_user_model) -> None:
    finance = Group.objects.create(name="finance")
    payer = django_user_model.objects.create_user("payer")
    payer.groups.add(finance)
    stand_in = django_user_model.objects.create_user("stand-in")
    Delegation.objects.create(user=payer, delegate=stand_in)
    rows = {
        "question": asked_by(run),
        "staff": approval_of(run),
        "finance": approval_of(run, "group:finance"),
        "named": approval_of(run, "user:bob"),
        "permission": approval_of(run, "permission:ravi.view_run"),
    }

    def seen_by(who: Any) -> dict[str, bool]:
        names = {str(row.id): name for name, row in rows.items()}
        return {names[row["id"]]: row["may_answer"] for row in client_of(who).get(LIST).json()["results"]}

    everything = dict.fromkeys(rows, True)
    assert seen_by(user) == {**dict.fromkeys(rows, False), "question": True}
    assert seen_by(stranger) == {"named": True}
    assert seen_by(staff) == {"staff": True}
    assert seen_by(payer) == seen_by(stand_in) == {"finance": True}
    assert seen_by(root) == everything
    for who in (user, stranger, staff, payer, stand_in, root):
        shown = seen_by(who)
        for name, row in rows.items():
            found = client_of(who).get(f"{LIST}{row.id}/")
            assert found.status_code == (200 if name in shown else 404), (who, name)
            assert found.status_code == 404 or found.json()["may_answer"] == shown[name], (who, name)


def test_nobody_is_asked_about_another_tenants_run(user: Any, staff: Any, root: Any) -> None:
    request = approval_of(submit(AGENT, "hi", user=user, tenant="acme"))

    assert client_of(staff).get(f"{LIST}{request.id}/").status_code == 404
    assert ids(client_of(staff)) == []
    assert ids(client_of(user)) == ids(client_of(root)) == [str(request.id)]


# ------------------------------------------------------------------------------------------- pages, filters


def test_the_list_is_filtered(client: APIClient, run: Run) -> None:
    rows = {"question": asked_by(run), "old": asked_by(run)}
    rows |= {"approval": approval_of(run), "other": approval_of(run, tool="show")}
    world.answer(rows["old"], text="red")
    everything = ["other", "approval", "old", "question"]

    for query, names in {
        **dict.fromkeys(("", "?status=all", f"?agent={AGENT}", f"?run={run.id}", "?colour=red"), everything),
        "?status=pending": ["other", "approval", "question"],
        "?status=answered": ["old"],
        "?kind=approval": ["other", "approval"],
        "?tool=pay": ["approval"],
        "?kind=approval&tool=show&status=pending": ["other"],
        **{key: [] for key in ("?status=expired", "?agent=react/other", f"?run={NOBODYS}")},
    }.items():
        assert ids(client, query) == [str(rows[name].id) for name in names], query
    for query in (
        *("status=open", "status=", "kind=budget", "agent=helper", "run=1", "tool=a%00b", "limit=0", "limit=x"),
        *("cursor=x", "cursor=cD1ub25zZW5zZQ%3D%3D"),
    ):
        response = client.get(f"{LIST}?{query}")
        assert (response.status_code, error_of(response)["field"]) == (400, query.partition("=")[0]), query
    for path in ("nonsense/", "1/", f"{NOBODYS}/", "nonsense/answer/", "x/reassign/"):
        response = client.get(LIST + path)
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found"), path


@pytest.mark.parametrize("hook", [None, lambda user, request: bool(request.run.agent)])
def test_a_page_of_fifty_takes_as_many_queries_as_one_of_one(
    settings: Any, user: Any, staff: Any, run: Run, hook: Any, django_user_model: Any
) -> None:
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": hook}
    away = django_user_model.objects.create_user("away", is_staff=True)
    Delegation.objects.create(user=away, delegate=staff)
    client = client_of(staff)

    def queries() -> int:
        return queries_of(lambda: ids(client, "?limit=50"))

    answered = approval_of(run)
    world.answer(answered, "deny", by=staff)
    approval_of(run)
    with_few = queries()
    for number in range(48):
        other = approval_of(submit(AGENT, "hi", user=user))
        if number % 2:
            world.answer(other, "deny", by=staff)

    assert queries() == with_few <= 20
    assert len(ids(client, "?limit=50")) == 50
