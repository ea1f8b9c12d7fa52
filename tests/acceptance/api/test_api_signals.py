"""POST runs/{id}/signals/."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django import register
from ravi_django.conf import conf
from ravi_django.models import Run, Signal, Status
from ravi_django.testing import run_until_idle
from tests.acceptance.api.api_support import client_of, error_of
from tests.support.runs import CodeAgent
from tests.support.world import submit


@pytest.fixture
def waiter() -> str:
    async def story(ctx: Any, inbox: Any) -> Any:
        return await ctx.sleep_until_signal("paid")

    return str(register(CodeAgent(story, key="api_waiter")).id)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("permitted")
def test_a_signal_wakes_the_run_that_waits_for_it(client: APIClient, user: Any, waiter: str) -> None:
    run = submit(waiter, "hi", user=user)
    run_until_idle()
    found = client.get(f"/ravi/runs/{run.id}/").json()
    assert (found["status"], found["waiting_on"]) == ("suspended", {"kind": "signal", "name": "paid", "until": None})

    response = client.post(f"/ravi/runs/{run.id}/signals/", {"name": "paid", "payload": {"by": "card"}}, format="json")

    assert (response.status_code, response.json()["id"], response.json()["waiting_on"]) == (202, str(run.id), None)
    run_until_idle()
    assert client.get(f"/ravi/runs/{run.id}/").json()["output"] == '{"by":"card"}'


@pytest.mark.django_db
@pytest.mark.usefixtures("permitted")
def test_what_is_no_signal_and_an_ended_run_get_none(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    path = f"/ravi/runs/{run.id}/signals/"

    for body, field in (
        *(({"name": bad}, "name") for bad in ("", 5, "x" * 201, "a\0b")),
        ({}, "name"),
        ({"name": "x", "to": "y"}, "to"),
    ):
        response = client.post(path, body, format="json")
        assert (response.status_code, error_of(response)["field"]) == (400, field), body
    large = client.post(path, {"name": "x", "payload": "y" * conf.MAX_INPUT_BYTES}, format="json")
    assert large.status_code == 413
    for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
        Run.objects.filter(id=run.id).update(status=status)
        response = client.post(path, {"name": "paid"}, format="json")
        assert (response.status_code, error_of(response)["code"]) == (409, "illegal_transition"), status
    assert not Signal.objects.exists()
    Run.objects.filter(id=run.id).update(status=Status.PENDING)
    assert client.post(path, {"name": "paid"}, format="json").status_code == 202  # without a payload
    assert Signal.objects.values_list("name", "payload", "consumed_at").get() == ("paid", None, None)


def send(client: APIClient, run: Run, key: Any, name: str = "paid", payload: Any = None) -> Any:
    body = {"name": name, "payload": payload, "idempotency_key": key}
    return client.post(f"/ravi/runs/{run.id}/signals/", body, format="json")


@pytest.mark.django_db
@pytest.mark.usefixtures("permitted")
def test_a_repeated_key_is_one_signal_and_another_body_is_a_conflict(client, user, root, agent) -> None:
    run, other = submit(agent, "hi", user=user), submit(agent, "hi", user=user)

    sent = [send(client, run, "k1", payload={"a": 1, "b": 1.0}) for _ in range(2)]
    refused = [send(client, run, "k1", payload={"a": 2}), send(client, run, "k1", name="unpaid")]
    mine = [send(client, other, "k1"), send(client, run, "k2"), send(client_of(root), run, "k1")]

    assert [one.status_code for one in sent + mine] == [202] * 5
    assert [(one.status_code, error_of(one)["code"]) for one in refused] == [(409, "idempotency_mismatch")] * 2
    assert Signal.objects.count() == 4
    Run.objects.filter(id=run.id).update(status=Status.COMPLETED)
    assert send(client, run, "k1", payload={"b": 1, "a": 1}).json()["status"] == "completed"
    for wrong in ("", "k" * 201, 5):
        assert error_of(send(client, run, wrong))["field"] == "idempotency_key"
