"""POST requests/{id}/answer/: what may be decided, by what was asked."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django.api.parsers import max_body
from ravi_django.conf import conf
from ravi_django.models import AuditRecord, Run, StickyDecision
from tests.acceptance.api.api_support import AGENT, client_of, decide, error_of, is_open
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.world import submit

LIST = "/ravi/requests/"


@pytest.fixture
def run(user: Any) -> Run:
    return submit(AGENT, "hi", user=user)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"action": "approve"}, {}),
        ({"action": "approve", "reason": "Fine."}, {"reason": "Fine."}),
        ({"action": "approve", "sticky": False}, {}),
        ({"action": "deny", "reason": "Too much."}, {"reason": "Too much."}),
        ({"action": "edit", "arguments": {"to": "ACME", "amount": 5}}, {"arguments": {"to": "ACME", "amount": 5}}),
        ({"action": "approve", "version": 1}, {}),
        (dict.fromkeys(("text", "values", "arguments", "outcome", "result", "reason", "sticky", "version")), {}),
    ],
)
def test_an_approval_is_decided(staff: Any, run: Run, body: dict[str, Any], kept: dict[str, Any]) -> None:
    request = approval_of(run)
    body = {"action": "approve", **body}

    response = decide(client_of(staff), request, body)

    assert response.status_code == 200, response.content
    assert response.json()["answer"] == {"action": body["action"], "reason": "", "by": "carla", **kept}
    assert AuditRecord.objects.filter(run_id=run.id, name="answered").count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["skip", "cancel"])
@pytest.mark.parametrize("kind", [Kind.QUESTION, Kind.INPUT, Kind.APPROVAL])
def test_a_request_is_skipped_and_cancelled(root: Any, run: Run, kind: Kind, action: str) -> None:
    request = approval_of(run) if kind == Kind.APPROVAL else asked_by(run, kind)

    response = decide(client_of(root), request, {"action": action})

    assert (response.status_code, response.json()["answer"]["action"]) == (200, action)


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["approve", "deny"])
def test_a_decision_may_hold_for_the_session(staff: Any, run: Run, action: str) -> None:
    response = decide(client_of(staff), approval_of(run), {"action": action, "sticky": True})

    assert response.json()["answer"]["sticky"] is True
    row = StickyDecision.objects.get()
    assert (row.session_id, row.tool, row.action, row.decided_by) == (run.session_id, "pay", action, staff)


@pytest.mark.django_db
def test_several_questions_are_answered_by_their_keys(client: APIClient, run: Run) -> None:
    request = asked_by(run, Kind.INPUT, details={"questions": {"colour": "Which?", "coats": "How many?"}})

    response = decide(client, request, {"action": "answer", "values": {"colour": "red", "coats": "2"}})

    assert response.json()["answer"]["values"] == {"colour": "red", "coats": "2"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "said",
    [
        {"outcome": "happened", "result": {"invoice": 7}},
        {"outcome": "happened", "result": "paid"},
        {"outcome": "run_again"},
        {"outcome": "fail", "reason": "Unclear."},
    ],
)
def test_what_became_of_an_effect_is_resolved(staff: Any, run: Run, said: dict[str, Any]) -> None:
    request = asked_by(run, Kind.UNCERTAIN, tool="pay", arguments={"amount": 1})

    response = decide(client_of(staff), request, {"action": "resolve", **said})

    assert response.status_code == 200
    assert response.json()["answer"] == {"action": "resolve", "reason": "", "by": "carla", **said}


QUESTION, SEVERAL, APPROVAL, EFFECT = "question", "several", "approval", "effect"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (QUESTION, {}, "action"),
        (QUESTION, {"text": "red"}, "action"),
        (QUESTION, {"action": None}, "action"),
        (QUESTION, {"action": ""}, "action"),
        (QUESTION, {"action": "say"}, "action"),
        (QUESTION, {"action": ["answer"]}, "action"),
        (QUESTION, {"action": True, "text": "red"}, "action"),
        (QUESTION, {"action": "approve"}, "action"),
        (QUESTION, {"action": "resolve", "outcome": "fail"}, "action"),
        (QUESTION, {"action": "answer"}, "text"),
        (QUESTION, {"action": "answer", "text": " \n"}, "text"),
        (QUESTION, {"action": "answer", "text": 5}, "text"),
        (QUESTION, {"action": "answer", "text": ["red"]}, "text"),
        (QUESTION, {"action": "answer", "text": "green"}, "text"),
        (QUESTION, {"action": "answer", "text": "a\0b"}, "text"),
        (QUESTION, {"action": "skip", "text": "red"}, "text"),
        (QUESTION, {"action": "answer", "text": "red", "values": {"a": "b"}}, "values"),
        (QUESTION, {"action": "answer", "text": "red", "reason": 5}, "reason"),
        (QUESTION, {"action": "answer", "text": "red", "sticky": True}, "sticky"),
        (QUESTION, {"action": "answer", "text": "red", "arguments": {"a": 1}}, "arguments"),
        (QUESTION, {"action": "answer", "text": "red", "result": 1}, "result"),
        (QUESTION, {"action": "answer", "text": "red", "version": "1"}, "version"),
        (QUESTION, {"action": "answer", "text": "red", "version": 1.0}, "version"),
        (QUESTION, {"action": "answer", "text": "red", "version": True}, "version"),
        (QUESTION, {"action": "answer", "text": "red", "colour": "red"}, "colour"),
        (SEVERAL, {"action": "answer", "text": "red"}, "values"),
        (SEVERAL, {"action": "answer", "values": ["red"]}, "values"),
        (SEVERAL, {"action": "answer", "values": {}}, "values"),
        (SEVERAL, {"action": "answer", "values": {"colour": ""}}, "values"),
        (SEVERAL, {"action": "answer", "values": {"colour": 5}}, "values.colour"),
        (SEVERAL, {"action": "answer", "values": {"colour": "red", "coats": "2"}}, "values"),
        (APPROVAL, {"action": "answer", "text": "yes"}, "action"),
        (APPROVAL, {"action": "approve", "text": "yes"}, "text"),
        (APPROVAL, {"action": "approve", "arguments": {"to": "X", "amount": 1}}, "arguments"),
        (APPROVAL, {"action": "edit"}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": []}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": "{}"}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": {"to": "X"}}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": {"to": "X", "amount": "5"}}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": {"to": "X", "amount": 5, "more": 1}}, "arguments"),
        (APPROVAL, {"action": "edit", "arguments": {"to": "X", "amount": 5}, "sticky": True}, "sticky"),
        (APPROVAL, {"action": "approve", "sticky": "true"}, "sticky"),
        (APPROVAL, {"action": "approve", "sticky": 1}, "sticky"),
        (APPROVAL, {"action": "approve", "outcome": "happened"}, "outcome"),
        (QUESTION, {"action": "answer", "text": "red", "values": {}}, "values"),
        (QUESTION, {"action": "answer", "text": "red", "arguments": {}}, "arguments"),
        (QUESTION, {"action": "answer", "text": "red", "result": False}, "result"),
        (APPROVAL, {"action": "approve", "result": False}, "result"),
        (APPROVAL, {"action": "approve", "result": 0}, "result"),
        (APPROVAL, {"action": "approve", "result": ""}, "result"),
        (APPROVAL, {"action": "approve", "outcome": ""}, "outcome"),
        (APPROVAL, {"action": "approve", "arguments": {}}, "arguments"),
        (APPROVAL, {"action": "approve", "values": {}}, "values"),
        (APPROVAL, {"action": "deny", "arguments": {}}, "arguments"),
        (EFFECT, {"action": "resolve", "outcome": "fail", "result": False}, "result"),
        (EFFECT, {"action": "resolve", "outcome": "run_again", "values": {}}, "values"),
        (EFFECT, {"action": "approve"}, "action"),
        (EFFECT, {"action": "skip"}, "action"),
        (EFFECT, {"action": "resolve"}, "outcome"),
        (EFFECT, {"action": "resolve", "outcome": "maybe"}, "outcome"),
        (EFFECT, {"action": "resolve", "outcome": 5}, "outcome"),
        (EFFECT, {"action": "resolve", "outcome": "fail", "result": "paid"}, "result"),
    ],
)
def test_a_bad_body_names_its_field(root: Any, run: Run, kind: str, body: Any, field: str) -> None:
    request = {
        QUESTION: lambda: asked_by(run, choices=["red", "blue"], details={"free_text": False}),
        SEVERAL: lambda: asked_by(run, Kind.INPUT, details={"questions": {"colour": "Which?"}}),
        APPROVAL: lambda: approval_of(run),
        EFFECT: lambda: asked_by(run, Kind.UNCERTAIN, tool="pay"),
    }[kind]()

    response = decide(client_of(root), request, body)

    assert (response.status_code, error_of(response)["field"]) == (400, field), response.content
    assert is_open(request)


@pytest.mark.django_db
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"action": NaN}', b"\xff"])
def test_a_body_that_is_no_object_is_400(client: APIClient, run: Run, body: bytes) -> None:
    request = asked_by(run)

    response = client.post(f"{LIST}{request.id}/answer/", body, content_type="application/json")

    assert (response.status_code, error_of(response)["code"]) in [(400, "invalid_json"), (400, "invalid_input")]
    assert is_open(request)


@pytest.mark.django_db
def test_a_form_is_415(client: APIClient, run: Run) -> None:
    request = asked_by(run)

    response = client.post(f"{LIST}{request.id}/answer/", {"action": "skip"}, format="multipart")

    assert response.status_code == 415
    assert is_open(request)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (QUESTION, {"action": "answer", "text": "x" * 10_001}, "text"),
        (QUESTION, {"action": "skip", "reason": "x" * 10_001}, "reason"),
        (APPROVAL, {"action": "edit", "arguments": {"to": "x" * conf.MAX_INPUT_BYTES, "amount": 1}}, "arguments"),
        (EFFECT, {"action": "resolve", "outcome": "happened", "result": "x" * conf.MAX_RESULT_BYTES}, "result"),
        (QUESTION, {"action": "answer", "text": "x" * max_body()}, None),
    ],
)
def test_what_is_too_large_is_413(root: Any, run: Run, kind: str, body: Any, field: str | None) -> None:
    request = {
        QUESTION: lambda: asked_by(run),
        APPROVAL: lambda: approval_of(run),
        EFFECT: lambda: asked_by(run, Kind.UNCERTAIN, tool="pay"),
    }[kind]()

    response = decide(client_of(root), request, body)

    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    assert error_of(response).get("field") == field
    assert is_open(request)
