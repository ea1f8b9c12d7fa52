"""POST runs/{id}/retry/ and runs/{id}/fork/."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from ravi_django.kernel import ModelError, RunFailedError
from ravi_django.models import JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import client_of, drive, error_of, make_agent
from tests.support import world
from tests.support.world import submit

WRONG_KEY = ModelError("wrong key", type="AuthenticationError")


def failing_once() -> None:
    script = iter([WRONG_KEY])
    world.register(make_agent(model=ScriptedModel([lambda messages, options: next(script, "It is 42.")])), replace=True)


def drive_to_failure(run: Any) -> None:
    with pytest.raises(RunFailedError, match="wrong key"):
        drive(str(run))


def page(client: APIClient, run: str, after: int = 0) -> dict[str, Any]:
    response = client.get(f"/ravi/runs/{run}/events/?after={after}", headers={"Accept": "application/json"})
    assert response.status_code == 200
    return dict(response.json())


# ------------------------------------------------------------------------------------------------- retry


@pytest.mark.django_db(transaction=True)
def test_a_failed_run_is_retried_and_its_stream_goes_on(client: APIClient, user: Any, agent: str) -> None:
    failing_once()
    run = str(submit(agent, "hi", user=user).id)
    drive_to_failure(run)
    failed = client.get(f"/ravi/runs/{run}/").json()
    seen = page(client, run)
    assert (failed["status"], failed["error"]["type"], seen["done"]) == ("failed", "AuthenticationError", True)

    response = client.post(f"/ravi/runs/{run}/retry/")

    assert response.status_code == 202
    found = response.json()
    assert (found["id"], found["status"], found["error"], found["finished_at"]) == (run, "pending", None, None)
    drive(run)
    assert client.get(f"/ravi/runs/{run}/").json()["output"] == "It is 42."
    later = page(client, run, after=seen["next_after"])
    assert later["done"] and later["results"][0]["seq"] == seen["next_after"] + 1
    assert (later["results"][-1]["type"], later["results"][-1]["reason"]) == ("stream.done", "completed")


@pytest.mark.django_db
def test_what_has_not_failed_or_is_too_late_is_a_conflict(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    address = f"/ravi/runs/{run.id}/retry/"

    for status in (one for one in Status if one not in (Status.FAILED, Status.BLOCKED)):
        Run.objects.filter(id=run.id).update(status=status)
        response = client.post(address)
        assert (response.status_code, error_of(response)["code"]) == (409, "illegal_transition"), status
    Run.objects.filter(id=run.id).update(status=Status.FAILED, deadline=timezone.now() - timedelta(seconds=1))
    late, bad = client.post(address), client.post(address, {"now": True}, format="json")

    assert (late.status_code, "deadline" in error_of(late)["message"]) == (409, True)
    assert (bad.status_code, error_of(bad)["field"]) == (400, "now")
    assert Run.objects.get().status == Status.FAILED


# ------------------------------------------------------------------------------------------------- fork


def fork(client: APIClient, run: Any, body: Any) -> Any:
    return client.post(f"/ravi/runs/{run}/fork/", body, format="json")


@pytest.mark.django_db(transaction=True)
def test_a_fork_is_a_new_run_in_a_new_session(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user, metadata={"a": 1})
    drive(str(run.id))
    before = client.get(f"/ravi/runs/{run.id}/").json()
    called = JournalEntry.objects.get(kind="tool.call")

    response = fork(client, run.id, {"after_seq": called.seq})

    assert response.status_code == 201
    found = response.json()
    assert (found["status"], found["agent"], found["metadata"]) == ("pending", agent, {"a": 1})
    assert found["id"] != str(run.id)
    assert found["session"] != str(run.session_id)
    assert (found["parent"], found["root"], found["depth"]) == (None, found["id"], 0)
    assert found["usage"] == {
        "input_tokens": 5,
        "cached_tokens": 2,
        "output_tokens": 3,
        "cost": 0.25,
        "estimated": False,
    }
    drive(found["id"])
    assert client.get(f"/ravi/runs/{found['id']}/").json()["output"] == "It is 42."
    assert client.get(f"/ravi/runs/{run.id}/").json() == before


@pytest.mark.django_db(transaction=True)
def test_a_fork_with_a_message_answers_that_one_after_the_same_conversation(client, stranger, user, agent) -> None:
    heard = ScriptedModel([lambda messages, options: f"Heard {len(messages)}: {messages[-1].text}"])
    world.register(make_agent(model=heard), replace=True)
    first = submit(agent, "hi", user=user)
    drive(str(first.id))
    run = submit(agent, "What is 6 * 7?", user=user, session=first.session_id)
    drive(str(run.id))
    asked = {"input": [{"type": "text", "text": "What is 6 * 8?"}], "idempotency_key": "k1"}

    response, repeated = (fork(client, run.id, asked) for _ in range(2))

    found = response.json()
    assert (response.status_code, repeated.status_code, repeated.json()["id"]) == (201, 200, found["id"])
    assert found["forked_from"] == str(run.id)
    assert client.get(f"/ravi/runs/{found['id']}/").json()["input"] == asked["input"]
    drive(found["id"])
    assert client.get(f"/ravi/runs/{found['id']}/").json()["output"] == "Heard 4: What is 6 * 8?"
    said = client.get(f"/ravi/sessions/{found['session']}/messages/").json()["results"]
    kept = client.get(f"/ravi/sessions/{run.session_id}/messages/").json()["results"]
    texts = [
        [block["text"] for row in rows if row["role"] == "user" for block in row["content"]] for rows in (said, kept)
    ]
    assert texts == [["hi", "What is 6 * 8?"], ["hi", "What is 6 * 7?"]]
    assert client.get(f"/ravi/sessions/{found['session']}/").json()["title"] == "What is 6 * 8?"
    assert fork(client_of(stranger), run.id, asked).status_code == 404
    assert fork(client, run.id, {**asked, "input": "another"}).status_code == 409
    for bad in ({"input": " "}, {"input": 5}, {"input": []}, {"input": "x", "after_seq": 1}):
        assert fork(client, run.id, bad).status_code == 400, bad
    Run.objects.filter(id=run.id).update(generation=1)
    assert (late := fork(client, run.id, {"input": "x"})).status_code == 409, late.json()


@pytest.mark.django_db(transaction=True)
def test_a_bad_place_or_an_agent_that_is_gone_makes_no_fork(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    drive(str(run.id))

    for body in ({}, *({"after_seq": given} for given in (None, 0, -1, "1", 1.5, True, 99, 10**30, [1]))):
        response = fork(client, run.id, body)
        assert (response.status_code, error_of(response)["field"]) == (400, "after_seq"), body
    world.unregister(agent)
    response = fork(client, run.id, {"after_seq": 1})

    assert (response.status_code, error_of(response)["field"]) == (404, "agent")
    assert Run.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_repeated_key_gives_the_first_fork(client: APIClient, user: Any, admin_user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    drive(str(run.id))
    gate, body = threading.Barrier(4), {"after_seq": 2, "idempotency_key": "k1"}

    def post(_: int) -> tuple[int, str]:
        gate.wait()
        answer = fork(client_of(user), run.id, body)
        connection.close()
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, range(4)))
    other, theirs = fork(client, run.id, {**body, "after_seq": 3}), fork(client_of(admin_user), run.id, body)

    assert sorted(status for status, _ in answers) == [200] * 3 + [201]
    assert len({found for _, found in answers}) == 1
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_mismatch")
    assert (theirs.status_code, Run.objects.count()) == (201, 3)
    assert Run.objects.get(id=theirs.json()["id"]).owner == user


# ------------------------------------------------------------------------------------------------- pruned runs


@pytest.mark.django_db(transaction=True)
def test_what_a_pruned_run_answers(client: APIClient, user: Any, agent: str, valkey_url: str) -> None:
    failing_once()
    run = submit(agent, "hi", user=user)
    drive_to_failure(run.id)
    long_ago = timezone.now() - timedelta(days=1)
    Run.objects.filter(id=run.id).update(finished_at=long_ago, published_at=long_ago)
    for rows in (world.journal_rows, world.prune_frames, world.prune_archives):
        world.prune_trees([run.id], rows, 60)
    with redis.Redis.from_url(valkey_url) as buffer:
        buffer.flushdb()

    journal = client.get(f"/ravi/runs/{run.id}/journal/")
    answers = [client.post(f"/ravi/runs/{run.id}/retry/"), fork(client, run.id, {"after_seq": 1})]

    assert (journal.status_code, journal.json()["results"]) == (200, [])
    assert page(client, str(run.id)) == {"results": [], "next_after": 0, "done": True}
    assert client.get(f"/ravi/runs/{run.id}/").json()["error"]["type"] == "AuthenticationError"
    assert [answer.status_code for answer in answers] == [409, 409]
    assert all("was pruned" in error_of(answer)["message"] for answer in answers)
