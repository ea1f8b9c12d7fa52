"""POST requests/{id}/answer/: who may decide, and that it reaches the run."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from rest_framework.test import APIClient

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Delegation, Run
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.acceptance.api.api_support import AGENT, client_of, decide, error_of, is_open
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.runs import CodeAgent
from tests.support.world import submit

LIST = "/ravi/requests/"


@pytest.fixture
def run(user: Any) -> Run:
    return submit(AGENT, "hi", user=user)


# --------------------------------------------------------------------------------------------- a whole way


@pytest.mark.django_db(transaction=True)
def test_an_answer_lets_the_run_go_on(client: APIClient, user: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        told = await ctx.ask_human("<b>Which</b> colour?", ["red", "blue"], timeout=3600)
        return f"{told['text']}, says {told['by']}"

    run = submit(str(register(CodeAgent(story, key="painter")).id), "hi", user=user)
    run_until_idle()
    (asked,) = client.get(f"{LIST}?status=pending").json()["results"]
    assert (asked["run"], asked["text"], asked["choices"]) == (str(run.id), "<b>Which</b> colour?", ["red", "blue"])
    waiting = client.get(f"/ravi/runs/{run.id}/").json()
    assert (waiting["status"], waiting["waiting_on"]["kind"]) == ("suspended", "request")
    assert set(waiting["waiting_on"]) == {"kind", "id", "until"}
    assert waiting["waiting_on"]["id"] == asked["id"]
    assert waiting["waiting_on"]["until"][:23] == asked["expires_at"][:23]

    response = client.post(f"{LIST}{asked['id']}/answer/", {"action": "answer", "text": "<i>red</i>"}, format="json")

    assert (response.status_code, response["Content-Type"]) == (200, "application/json")
    decided = response.json()
    assert decided == client.get(f"{LIST}{asked['id']}/").json()
    assert decided["answer"] == {"action": "answer", "reason": "", "text": "<i>red</i>", "by": "ann"}
    assert (decided["status"], decided["answered_by"], decided["actions"]) == ("answered", "ann", [])
    run_until_idle()
    ended = client.get(f"/ravi/runs/{run.id}/").json()
    assert (ended["output"], ended["error"]) == ("<i>red</i>, says ann", None)
    assert client.get(f"{LIST}?status=pending").json()["results"] == []


@pytest.mark.django_db(transaction=True)
def test_each_call_of_a_turn_has_its_own_decision(user: Any, staff: Any) -> None:
    paid = []

    @tool(risk="high")
    def pay(to: str, amount: int) -> str:
        """Pay somebody."""
        paid.append((to, amount))
        return f"paid {amount} to {to}"

    def call(number: int) -> ToolUseBlock:
        return ToolUseBlock(tool_name="pay", arguments={"to": f"c{number}", "amount": 100}, call_id=f"call{number}")

    model = ScriptedModel([[call(1), call(2), call(3)], "Done."])
    agent = register(ReActAgent("payer", model=model, tools=[pay], approvers="staff"))
    run = submit(str(agent.id), "Pay them.", user=user)
    run_until_idle()
    client = client_of(staff)
    open_ = {row["arguments"]["to"]: row for row in client.get(f"{LIST}?run={run.id}").json()["results"]}
    assert {(row["tool"], row["risk"], row["to"], row["may_answer"]) for row in open_.values()} == {
        ("pay", "high", "staff", True)
    }
    shown = client.get(f"{LIST}{open_['c1']['id']}/").json()
    assert (shown["description"], set(shown["schema"]["properties"])) == ("Pay somebody.", {"to", "amount"})

    for name, body in (
        ("c3", {"action": "edit", "arguments": {"to": "c3", "amount": 5}}),
        ("c1", {"action": "deny", "reason": "Not them."}),
        ("c2", {"action": "approve"}),
    ):
        assert client_of(user).post(f"{LIST}{open_[name]['id']}/answer/", body, format="json").status_code == 403
        assert client.post(f"{LIST}{open_[name]['id']}/answer/", body, format="json").status_code == 200
        run_until_idle()

    assert sorted(paid) == [("c2", 100), ("c3", 5)]
    ended = client_of(user).get(f"/ravi/runs/{run.id}/").json()
    assert (ended["status"], ended["output"], ended["error"]) == ("completed", "Done.", None)
    results = {block.call_id: str(block.content) for block in model.calls[1].messages[-1].content}
    assert "Not them." in results["call1"] and "carla" not in results["call1"]
    assert "paid 100 to c2" in results["call2"] and "paid 5 to c3" in results["call3"]


# ----------------------------------------------------------------------------------------------- who may


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("who", "statuses"),
    [  # of a question to the owner, an approval by staff, by a group, and by a user; an uncertain effect
        ("owner", (200, 403, 403, 403, 403)),
        ("stranger", (404, 404, 404, 200, 404)),
        ("staff", (404, 200, 404, 404, 200)),
        ("member", (404, 404, 200, 404, 404)),
        ("delegate", (404, 404, 200, 404, 404)),
        ("superuser", (200, 200, 200, 200, 200)),
        ("inactive", (404, 404, 404, 404, 404)),
        ("nobody", (401, 401, 401, 401, 401)),
    ],
)
def test_who_may_answer_what(
    user: Any, stranger: Any, staff: Any, run: Run, django_user_model: Any, who: str, statuses: tuple[int, ...]
) -> None:
    users = django_user_model.objects
    member, delegate = users.create_user("member"), users.create_user("delegate")
    member.groups.add(Group.objects.create(name="finance"))
    Delegation.objects.create(user=member, delegate=delegate)
    people = {"owner": user, "stranger": stranger, "staff": staff, "member": member, "delegate": delegate}
    people |= {"superuser": users.create_superuser("boss"), "nobody": None}
    people["inactive"] = users.create_user("gone", is_active=False, is_superuser=True)
    approve, resolve = {"action": "approve"}, {"action": "resolve", "outcome": "fail"}
    asked = [
        (asked_by(run), {"action": "answer", "text": "red"}),
        (approval_of(run), approve),
        (approval_of(run, "group:finance"), approve),
        (approval_of(run, "user:bob"), approve),
        (asked_by(run, Kind.UNCERTAIN, tool="pay"), resolve),
    ]
    client = client_of(people[who])
    codes = {401: "unauthenticated", 403: "forbidden", 404: "not_found"}

    for (request, body), wanted in zip(asked, statuses, strict=True):
        response = decide(client, request, body)
        assert response.status_code == wanted, (request.kind, request.to)
        if wanted == 200:
            assert response.json()["answered_by"] == people[who].username
        else:
            assert error_of(response)["code"] == codes[wanted]
            assert is_open(request)
            assert str(request.text) not in response.content.decode()


@pytest.mark.django_db
def test_a_delegate_is_recorded_with_whose_place_they_took(staff: Any, run: Run, stranger: Any) -> None:
    Delegation.objects.create(user=staff, delegate=stranger)
    request = approval_of(run, "user:carla")

    shown = decide(client_of(stranger), request, {"action": "deny", "reason": "No."}).json()

    assert (shown["answered_by"], shown["answer"]["by"], shown["answer"]["instead_of"]) == ("bob", "bob", "carla")


@pytest.mark.django_db
def test_another_tenants_request_is_absent(user: Any, staff: Any) -> None:
    request = approval_of(submit(AGENT, "hi", user=user, tenant="acme"))

    response = decide(client_of(staff), request, {"action": "approve"})

    assert response.status_code == 404
    assert is_open(request)


@pytest.mark.django_db
def test_four_eyes_bind_a_superuser_too(settings: Any, root: Any) -> None:
    settings.RAVI = {**settings.RAVI, "FOUR_EYES": True}
    request = approval_of(submit(AGENT, "hi", user=root))

    response = decide(client_of(root), request, {"action": "approve"})

    assert (response.status_code, error_of(response)["code"]) == (403, "forbidden")
    assert "four eyes" in error_of(response)["message"]
    assert is_open(request)


@pytest.mark.django_db
def test_who_has_answered_comes_from_the_credentials_alone(client: APIClient, run: Run) -> None:
    request = asked_by(run)

    for name in ("by", "answered_by", "user"):
        response = decide(client, request, {"action": "answer", "text": "red", name: "admin"})
        assert (response.status_code, error_of(response)["field"]) == (400, name)

    assert is_open(request)


@pytest.mark.django_db
def test_a_session_needs_the_csrf_token(user: Any, run: Run) -> None:
    request = asked_by(run)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)

    for what in ("answer", "reassign"):
        body = {"action": "skip"} if what == "answer" else {"to": "staff"}
        response = browser.post(f"{LIST}{request.id}/{what}/", body, content_type="application/json")
        assert (response.status_code, error_of(response)["code"]) == (403, "forbidden")

    assert is_open(request)


@pytest.mark.django_db
@pytest.mark.parametrize("what", ["answer", "reassign"])
def test_reading_never_decides(client: APIClient, run: Run, what: str) -> None:
    request = asked_by(run)

    for method in ("get", "head", "put", "patch", "delete"):
        response = getattr(client, method)(f"{LIST}{request.id}/{what}/?action=skip&to=staff")
        assert response.status_code == 405

    assert is_open(request)
