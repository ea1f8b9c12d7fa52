"""POST runs/{id}/signals/."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django import register
from ravi_django.conf import conf
from ravi_django.models import Run, Signal, Status
from ravi_django.runtime.submit import submit
from ravi_django.testing import run_until_idle
from tests.acceptance.api.api_support import error_of
from tests.support.runs import CodeAgent


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
    assert (found["status"], found["waiting_on"]) == (
        "suspended",
        {"kind": "signal", "name": "paid", "until": None},
    )

    response = client.post(f"/ravi/runs/{run.id}/signals/", {"name": "paid", "payload": {"by": "card"}}, format="json")

    assert (response.status_code, response.json()["id"], response.json()["waiting_on"]) == (202, str(run.id), None)
    run_until_idle()
    assert client.get(f"/ravi/runs/{run.id}/").json()["output"] == '{"by":"card"}'


@pytest.mark.django_db
@pytest.mark.usefixtures("permitted")
def test_a_payload_may_be_left_out_and_the_signal_is_kept(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)

    assert client.post(f"/ravi/runs/{run.id}/signals/", {"name": "paid"}, format="json").status_code == 202

    assert Signal.objects.values_list("name", "payload", "consumed_at").get() == ("paid", None, None)


@pytest.mark.django_db
@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_run_that_has_ended_takes_none(client: APIClient, user: Any, agent: str, status: Status) -> None:
    run = submit(agent, "hi", user=user)
    Run.objects.filter(id=run.id).update(status=status)

    response = client.post(f"/ravi/runs/{run.id}/signals/", {"name": "paid"}, format="json")

    assert (response.status_code, error_of(response)["code"]) == (409, "illegal_transition")
    assert not Signal.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "x", "to": "y"}, "to"),
    ],
)
def test_a_bad_body_names_its_field(client: APIClient, user: Any, agent: str, body: Any, field: str) -> None:
    run = submit(agent, "hi", user=user)

    response = client.post(f"/ravi/runs/{run.id}/signals/", body, format="json")

    assert (response.status_code, error_of(response)["field"]) == (400, field)
    assert not Signal.objects.exists()


@pytest.mark.usefixtures("permitted")
@pytest.mark.django_db
def test_a_payload_over_the_limit_is_413(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)
    body = {"name": "x", "payload": "y" * conf.MAX_INPUT_BYTES}

    response = client.post(f"/ravi/runs/{run.id}/signals/", body, format="json")

    assert response.status_code == 413
    assert not Signal.objects.exists()


@pytest.mark.django_db
def test_a_stranger_signals_nothing(strange_client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)

    response = strange_client.post(f"/ravi/runs/{run.id}/signals/", {"name": "paid"}, format="json")

    assert response.status_code == 404
    assert not Signal.objects.exists()
