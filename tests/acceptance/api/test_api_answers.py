"""POST requests/{id}/answer/ and reassign/: what may be said, once and in time, and that it reaches the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from ravi_django import register
from ravi_django.api.base import max_body
from ravi_django.conf import conf
from ravi_django.models import AuditRecord, HumanRequest, Run, Status, StickyDecision
from ravi_django.testing import run_until_idle
from tests.acceptance.api.api_support import client_of, decide, error_of, is_open
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.runs import CodeAgent
from tests.support.world import submit

LIST = "/ravi/requests/"


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


# ------------------------------------------------------------------------------------------- what may be said

QUESTION, SEVERAL, APPROVAL, EFFECT = "question", "several", "approval", "effect"
MAKE: dict[str, Any] = {
    QUESTION: lambda run: asked_by(run, choices=["red", "blue"], details={"free_text": False}),
    SEVERAL: lambda run: asked_by(run, Kind.INPUT, details={"questions": {"colour": "Which?", "coats": "How many?"}}),
    APPROVAL: lambda run: approval_of(run),
    EFFECT: lambda run: asked_by(run, Kind.UNCERTAIN, tool="pay", arguments={"amount": 1}),
}
EDITED = {"to": "ACME", "amount": 5}
GOOD: list[tuple[str, str, dict[str, Any]]] = [
    (QUESTION, "answer", {"text": "red"}),
    (SEVERAL, "answer", {"values": {"colour": "red", "coats": "2"}}),
    (APPROVAL, "approve", {"reason": "Fine."}),
    (APPROVAL, "deny", {"reason": "Too much."}),
    (APPROVAL, "edit", {"arguments": EDITED}),
    *((kind, action, {}) for kind in (QUESTION, SEVERAL, APPROVAL) for action in ("skip", "cancel")),
    (EFFECT, "resolve", {"outcome": "happened", "result": {"invoice": 7}}),
    (EFFECT, "resolve", {"outcome": "happened", "result": "paid"}),
    (EFFECT, "resolve", {"outcome": "run_again"}),
    (EFFECT, "resolve", {"outcome": "fail", "reason": "Unclear."}),
]
# By kind and action: the field that is named, and what is refused beside the action.
BAD: list[tuple[str, Any, str, list[dict[str, Any]]]] = [
    *((QUESTION, bad, "action", [{}]) for bad in (None, "", "say", ["answer"], True, "approve", "resolve")),
    (QUESTION, "answer", "text", [{}, *({"text": bad} for bad in (" \n", 5, ["red"], "green", "a\0b"))]),
    *(
        (QUESTION, "answer", name, [{"text": "red", name: bad} for bad in values])
        for name, values in {
            "values": [{"a": "b"}, {}],
            "reason": [5],
            "sticky": [True],
            "arguments": [{"a": 1}, {}],
            "result": [1, False],
            "version": ["1", 1.0, True],
            **{key: ["admin"] for key in ("colour", "by", "answered_by", "user")},
        }.items()
    ),
    (SEVERAL, "answer", "values", [{"text": "red"}, *({"values": bad} for bad in (["red"], {}, {"colour": "red"}))]),
    (SEVERAL, "answer", "values", [{"values": {"colour": "", "coats": "2"}}]),
    (SEVERAL, "answer", "values", [{"values": {"colour": "red", "coats": "2", "more": "3"}}]),
    (SEVERAL, "answer", "values.colour", [{"values": {"colour": 5, "coats": "2"}}]),
    (APPROVAL, "answer", "action", [{"text": "yes"}]),
    (APPROVAL, "edit", "arguments", [{}, *({"arguments": bad} for bad in ([], "{}", {"to": "X"}))]),
    (APPROVAL, "edit", "arguments", [{"arguments": {**EDITED, **bad}} for bad in ({"amount": "5"}, {"more": 1})]),
    *(
        (APPROVAL, "approve", name, [{name: bad} for bad in values])
        for name, values in {
            "text": ["yes"],
            "arguments": [EDITED, {}],
            "sticky": ["true", 1],
            "outcome": ["happened", ""],
            "result": [False, 0, ""],
            "values": [{}],
        }.items()
    ),
    (APPROVAL, "deny", "arguments", [{"arguments": {}}]),
    *((EFFECT, bad, "action", [{}]) for bad in ("approve", "skip")),
    (EFFECT, "resolve", "outcome", [{}, {"outcome": "maybe"}, {"outcome": 5}]),
    (EFFECT, "resolve", "values", [{"outcome": "run_again", "values": {}}]),
]
LARGE: list[tuple[str, dict[str, Any], str | None]] = [
    (QUESTION, {"action": "answer", "text": "x" * 10_001}, "text"),
    (QUESTION, {"action": "skip", "reason": "x" * 10_001}, "reason"),
    (APPROVAL, {"action": "edit", "arguments": {"to": "x" * conf.MAX_INPUT_BYTES, "amount": 1}}, "arguments"),
    (EFFECT, {"action": "resolve", "outcome": "happened", "result": "x" * conf.MAX_RESULT_BYTES}, "result"),
    (QUESTION, {"action": "answer", "text": "x" * max_body()}, None),
]


@pytest.mark.django_db
def test_a_good_answer_is_kept_and_recorded_once(root: Any, run: Run) -> None:
    client = client_of(root)
    for kind, action, said in GOOD:
        nothing = dict.fromkeys(("text", "values", "arguments", "outcome", "result", "reason", "sticky", "version"))

        response = decide(client, MAKE[kind](run), {**nothing, "action": action, **said})

        assert response.status_code == 200, (kind, action, response.content)
        plain = {"action": action, "reason": "", "by": "root", **({"text": ""} if kind in (QUESTION, SEVERAL) else {})}
        assert response.json()["answer"] == {**plain, **said}, (kind, action)
    answered = AuditRecord.objects.filter(run_id=run.id, name="answered").count()
    assert answered == sum(action != "cancel" for _, action, _ in GOOD)
    sticky = decide(client, approval_of(run), {"action": "deny", "sticky": True, "version": 1})
    assert sticky.json()["answer"]["sticky"] is True
    row = StickyDecision.objects.get()
    assert (row.session_id, row.tool, row.action, row.decided_by) == (run.session_id, "pay", "deny", root)


@pytest.mark.django_db
def test_a_bad_body_names_its_field_and_decides_nothing(root: Any, run: Run) -> None:
    client, asked = client_of(root), {kind: make(run) for kind, make in MAKE.items()}

    cases = [(kind, {"action": action, **said}, field) for kind, action, field, all_ in BAD for said in all_]
    for kind, body, field in [*cases, (QUESTION, {}, "action"), (QUESTION, {"text": "red"}, "action")]:
        response = decide(client, asked[kind], body)
        assert (response.status_code, error_of(response)["field"]) == (400, field), (kind, body)
    for kind, body, too_large in LARGE:
        response = decide(client, asked[kind], body)
        found = error_of(response)
        assert (response.status_code, found["code"], found.get("field")) == (413, "too_large", too_large), kind
    assert all(is_open(request) for request in asked.values())


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
