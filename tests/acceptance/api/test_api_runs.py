"""POST, GET runs/ and what lies under a run."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from rest_framework.test import APIClient

from ravi_django.models import Agent, Feedback, Run, Session, Status
from tests.acceptance.api.api_support import error_of, make_agent
from tests.support import world
from tests.support.world import submit

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("permitted")]
RUN_FIELDS = {
    *("id", "agent", "session", "status", "output", "error", "usage", "parent", "root", "depth", "waiting_on"),
    *("created_at", "start_at", "started_at", "finished_at", "attempts", "metadata", "priority", "agent_version"),
    "forked_from",
}


def test_a_new_run_is_answered_with_its_row(client: APIClient, user: Any, agent: str, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"  # times are in UTC whatever the zone of the site
    response = client.post("/ravi/runs/", {"agent": agent, "input": "6 * 7?", "metadata": {"a": 1}}, format="json")

    assert response.status_code == 201
    run = response.json()
    assert set(run) == RUN_FIELDS
    row = Run.objects.get()
    assert (UUID(run["id"]), UUID(run["session"]), run["agent"]) == (row.id, row.session_id, agent)
    assert (run["root"], run["parent"], run["depth"]) == (run["id"], None, 0)
    assert (run["status"], run["output"], run["error"], run["waiting_on"]) == ("pending", None, None, None)
    assert run["usage"] == {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost": 0.0, "estimated": False}
    assert (run["attempts"], run["started_at"], run["finished_at"]) == (0, None, None)
    assert (run["metadata"], run["priority"], run["agent_version"]) == ({"a": 1}, "normal", None)
    assert run["created_at"].endswith("Z")
    assert datetime.fromisoformat(run["created_at"]) == row.created_at
    assert row.owner == user


def test_every_option_reaches_the_run_and_null_stands_for_absent(client: APIClient, user: Any, agent: str) -> None:
    session = world.create_session(Session(owner=user))
    body = {
        "agent": agent,
        "input": [{"type": "text", "text": "hi"}],
        "session": str(session.id),
        "idempotency_key": "k",
        "priority": "high",
        "budget": {"max_tokens": 10, "max_cost_usd": 1, "deadline_s": 2.5},
        "deadline": "2031-01-31T12:00:00+02:00",
        "metadata": {"deep": [1, {"x": None}]},
    }

    response = client.post("/ravi/runs/", body, format="json")

    assert response.status_code == 201
    row = Run.objects.get()
    assert row.session_id == session.id
    assert row.budget == {"max_tokens": 10, "max_cost_usd": 1.0, "deadline_s": 2.5}
    assert row.deadline == datetime.fromisoformat("2031-01-31T10:00:00Z")
    assert response.json()["priority"] == "high"
    nothing = dict.fromkeys(("session", "idempotency_key", "budget", "deadline", "metadata"))
    assert client.post("/ravi/runs/", {"agent": agent, "input": "hi", **nothing}, format="json").status_code == 201


VALID = {"agent": "react/api-helper", "input": "hi"}
BLOCKS = [  # each with what is refused in it: no type, no text, or what models and tools alone write
    {"type": "text"},
    {"text": "no type"},
    {"type": "tool_use", "tool_name": "pay", "arguments": {}, "call_id": "c"},
    {"type": "tool_result", "call_id": "c"},
    {"type": "thinking", "text": "x", "signature": "made up"},
    {"type": "error", "message": "x"},
    {"type": "ui_resource", "uri": "ui://x"},
    {"type": "redacted_thinking", "data": "x"},
]
BAD: dict[str, list[Any]] = {
    "agent": ["helper", "re act/x", 7, None, ["react/api-helper"]],
    "input": ["", " \n", [], None, 5, True, VALID, ["hi"], "a\0b", *([block] for block in BLOCKS)],
    "session": ["a\nb", "n" * 201, 12],
    "idempotency_key": ["", 1, "k" * 201],
    "priority": ["urgent", 2, None, ["high"]],
    "budget": [5, [], *({"max_tokens": bad} for bad in ("5", True, 0)), {"max_cost_usd": -1}, {"max_toes": 1}],
    "deadline": ["tomorrow", 1893456000, "9999-12-31T23:59:59-12:00", "2031-02-31T12:00:00Z"],
    "metadata": ["x", [1], {"a": "\0"}, {"\0": 1}, {"a": "x" * 20_000}],
    "colour": ["red"],
    "user": [1],
}


def test_all_faults_of_a_body_and_of_a_query_are_listed(client: APIClient, agent: str) -> None:
    body = {"agent": "helper", "colour": "red", "priority": "now", "budget": {"max_tokens": 0, "max_turns": "x"}}
    refused = client.post("/ravi/runs/", body, format="json")
    first = error_of(refused)
    faults = refused.json()["errors"]

    assert {(fault["field"], fault["code"]) for fault in faults} == {
        ("colour", "unknown"),
        ("agent", "invalid"),
        ("input", "required"),
        ("priority", "invalid_choice"),
        ("budget", "invalid"),
    }
    assert [fault["message"].partition(":")[0] for fault in faults if fault["field"] == "budget"] == [
        "max_tokens",
        "max_turns",
    ]
    assert (first["code"], first["field"]) == ("invalid_input", faults[0]["field"])

    judged_later = client.post("/ravi/runs/", {"agent": agent, "input": ""}, format="json").json()
    assert [fault["field"] for fault in judged_later["errors"]] == ["input"]


def test_bad_input_is_refused_and_nothing_written(client: APIClient, stranger: Any, agent: str, written: Any) -> None:
    theirs = world.create_session(Session(owner=stranger))
    world.register(make_agent("off"))
    Agent.objects.update_or_create(address="react/off", defaults={"enabled": False})
    cases = [(VALID | {field: value}, 400, field) for field, values in BAD.items() for value in values]
    cases += [({"input": "hi"}, 400, "agent"), ({"agent": "react/api-helper"}, 400, "input"), ({}, 400, "agent")]
    cases += [(VALID | {"agent": absent}, 404, "agent") for absent in ("react/nobody", "react/off")]
    cases += [(VALID | {"session": str(absent)}, 404, "session") for absent in (uuid4(), theirs.id)]
    cases += [(VALID | {"input": "x" * (256 * 1024)}, 413, "input")]
    cases += [(VALID | {"input": [{"type": "text", "text": "é" * (128 * 1024)}]}, 413, "input")]
    before = written()

    for body, status, field in cases:
        response = client.post("/ravi/runs/", body, format="json")
        assert (response.status_code, error_of(response).get("field")) == (status, field), str(body)[:120]
    assert written() == before


RAW: list[tuple[bytes, int, str, str | None]] = [
    (b"{", 400, "invalid_json", None),
    (b"nonsense", 400, "invalid_json", None),
    (b"[1]", 400, "invalid_json", None),
    (b'"text"', 400, "invalid_json", None),
    (b"null", 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "hi"} trailing', 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "\xff"}', 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "\\ud800"}', 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "hi", "metadata": {"x": NaN}}', 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "hi", "metadata": {"x": Infinity}}', 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "hi", "metadata": {"x": 1e999}}', 400, "invalid_input", "metadata"),
    (b'{"agent": "react/api-helper", "input": "hi", "metadata": {"x": ' + b"[" * 5000, 400, "invalid_json", None),
    (b'{"agent": "react/api-helper", "input": "' + b"x" * 3_000_000 + b'"}', 413, "too_large", None),
    (b"\xef\xbb\xbf{}", 400, "invalid_json", None),
]


def test_a_body_that_is_no_strict_json_object_is_refused(client: APIClient, written: Any) -> None:
    before = written()

    for body, status, code, field in RAW:
        response = client.post("/ravi/runs/", body, content_type="application/json")
        error = error_of(response)
        assert (response.status_code, error["code"], error.get("field")) == (status, code, field), body[:90]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        response = client.generic("POST", "/ravi/runs/", b'{"agent": "react/api-helper"}', content_type=kind)
        assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type"), kind
    assert written() == before


def test_input_up_to_the_limit_is_taken_however_it_is_escaped(client: APIClient, agent: str) -> None:
    text = "é" * (128 * 1024 - 1)  # with its quotes 256 KiB to the byte
    escaped = "\\u00e9" * len(text)

    for body in (text, escaped):
        raw = f'{{"agent": "{agent}", "input": "{body}"}}'.encode()
        assert client.post("/ravi/runs/", raw, content_type="application/json").status_code == 201


def test_a_repeated_key_gives_its_users_first_run(client, strange_client, agent, written) -> None:
    body = {"agent": agent, "input": "hi", "idempotency_key": "k1"}
    first = client.post("/ravi/runs/", body, format="json")
    before = written()

    again = client.post("/ravi/runs/", body, format="json")
    other = client.post("/ravi/runs/", {**body, "input": "other"}, format="json")

    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, first.json()["id"])
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_mismatch")
    assert written() == before
    theirs = strange_client.post("/ravi/runs/", body, format="json")
    assert theirs.status_code == 201 and theirs.json()["id"] != first.json()["id"]


def test_a_message_s_key_is_its_session_s(client: APIClient, user: Any, agent: str) -> None:
    said, other = (world.create_session(Session(owner=user, agent=agent)) for _ in range(2))
    body = {"text": "hi", "idempotency_key": "k1"}

    def say(session: Session, **changed: Any) -> tuple[int, str]:
        answer = client.post(f"/ravi/sessions/{session.id}/messages/", {**body, **changed}, format="json")
        return answer.status_code, answer.json().get("id") or error_of(answer)["code"]

    first = say(said)
    Session.objects.filter(id=said.id).update(agent="react/spoken-to-since")
    again = say(said)

    assert (first[0], again) == (201, (200, first[1]))
    assert [say(said, text="other"), say(said, agent=agent)] == [(409, "idempotency_mismatch")] * 2
    assert say(other)[0] == 201
    assert Run.objects.count() == 2


# ------------------------------------------------------------------------------------------------- reading


def test_unknown_cost_is_null_and_an_error_has_type_and_message_only(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    changes = {"cost_unknown": True, "status": Status.FAILED, "error": {"type": "T", "message": "m", "diff": {"a": 1}}}
    Run.objects.filter(id=run.id).update(**changes)

    found = client.get(f"/ravi/runs/{run.id}/").json()

    assert found["usage"]["cost"] is None
    assert found["error"] == {"type": "T", "message": "m"}


def test_runs_are_listed_newest_first_in_pages(client, user, agent, django_assert_num_queries) -> None:
    made = [str(submit(agent, "hi", user=user).id) for _ in range(5)]

    seen, page, pages = [], "/ravi/runs/?limit=2", 0
    while page:
        with django_assert_num_queries(1):
            found = client.get(page).json()
        assert set(found) == {"next", "previous", "results"}
        seen += [run["id"] for run in found["results"]]
        page, pages = found["next"], pages + 1
        submit(agent, "later", user=user)  # one that comes meanwhile shifts no page

    assert (seen, pages) == (made[::-1], 3)
    back = client.get(found["previous"]).json()
    assert [run["id"] for run in back["results"]] == made[::-1][2:4]


def test_a_bad_query_is_refused(client: APIClient) -> None:
    cursors = ("nonsense", "cD1ub25zZW5zZQ==", "cj0xJnA9JTAw")  # p=nonsense, r=1&p=%00
    bad = {
        "limit": ("0", "-1", "x", "", "1.5", "%D9%A3", "1e3"),
        "cursor": cursors,
        "status": ("sleeping",),
        "session": ("nonsense",),
        "agent": ("nonsense", "a/%00"),
    }
    for field, values in bad.items():
        for value in values:
            response = client.get(f"/ravi/runs/?{field}={value}")
            assert (response.status_code, error_of(response)["field"]) == (400, field), value


def test_a_limit_over_the_most_is_the_most(client: APIClient, user: Any, agent: str) -> None:
    session = world.create_session(Session(owner=user))
    Run.objects.bulk_create(Run(agent=agent, session=session, owner=user, status=Status.COMPLETED) for _ in range(201))

    assert len(client.get("/ravi/runs/?limit=100000").json()["results"]) == 200
    assert len(client.get("/ravi/runs/").json()["results"]) == 50


@pytest.mark.django_db
def test_a_later_opinion_replaces_the_first_and_goes_with_its_user(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    address = f"/ravi/runs/{run.id}/feedback/"
    assert client.get(address).json() == {"score": None, "text": ""}
    for body in ({"score": -1, "text": "wrong"}, {"score": 1}):
        assert client.put(address, body, format="json").status_code == 200
    assert client.get(address).json() == {"score": 1, "text": ""}
    for body, field in (({"score": 0}, "score"), ({"score": 1, "text": "x" * 2001}, "text"), ({}, "score")):
        response = client.put(address, body, format="json")
        assert (response.status_code, error_of(response)["field"]) == (400, field)
    user.delete()
    assert not Feedback.objects.exists()
