"""POST runs/{id}/cancel/."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from rest_framework.test import APIClient

from project.process import wait_until
from ravi_django.conf import conf
from ravi_django.models import Run, Status
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import error_of, make_agent
from tests.support import world
from tests.support.patience import seconds
from tests.support.world import close_worker, submit


@pytest.mark.django_db
def test_a_run_that_nobody_works_on_ends_at_once(client: APIClient, user: Any, agent: str) -> None:
    for status in (Status.PENDING, Status.QUEUED, Status.SUSPENDED, Status.BLOCKED):
        run = submit(agent, "hi", user=user)
        Run.objects.filter(id=run.id).update(status=status)
        response = client.post(f"/ravi/runs/{run.id}/cancel/")
        found = response.json()
        assert (response.status_code, found["id"], found["status"]) == (202, str(run.id), "cancelled"), status
        assert found["error"] == {"type": "Cancelled", "message": "cancelled by its owner"}
        assert found["finished_at"].endswith("Z")
    run = submit(agent, "hi", user=user)
    found = client.post(f"/ravi/runs/{run.id}/cancel/", {"reason": "no longer wanted"}, format="json").json()
    assert found["error"]["message"] == "no longer wanted"


@pytest.mark.django_db
def test_a_bad_body_cancels_nothing_and_an_ended_run_is_a_conflict(client: APIClient, user: Any, agent: str) -> None:
    run = submit(agent, "hi", user=user)

    for body, field in (({"reason": 5}, "reason"), ({"why": "x"}, "why")):
        response = client.post(f"/ravi/runs/{run.id}/cancel/", body, format="json")
        assert (response.status_code, error_of(response)["field"]) == (400, field)
    for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
        Run.objects.filter(id=run.id).update(status=status)
        response = client.post(f"/ravi/runs/{run.id}/cancel/")
        assert (response.status_code, error_of(response)["code"]) == (409, "illegal_transition"), status
    assert Run.objects.get().cancel_requested_at is None


@pytest.mark.django_db(transaction=True)
def test_a_buffer_that_is_away_does_not_hinder_it(client, user, agent, monkeypatch) -> None:
    def fail(*args: Any) -> None:
        raise ConnectionError("no buffer")

    world.patch(monkeypatch, "republish", fail)
    run = submit(agent, "hi", user=user)

    assert client.post(f"/ravi/runs/{run.id}/cancel/").status_code == 202
    assert Run.objects.get().status == Status.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_a_run_that_this_process_drives_is_told_at_once(client, user, agent, settings) -> None:
    calling = threading.Event()

    async def never(*args: Any) -> str:
        calling.set()
        await asyncio.Event().wait()
        return ""

    settings.RAVI = {**settings.RAVI, "ENGINE": "inline", "HEARTBEAT_S": 10.0}
    world.register(make_agent(model=ScriptedModel([never])), replace=True)
    try:
        run = submit(agent, "hi", user=user)
        assert calling.wait(seconds(20))
        response = client.post(f"/ravi/runs/{run.id}/cancel/")
        ended = wait_until(lambda: Run.objects.get().is_terminal, conf.HEARTBEAT_S / 2, poll=0.02)
    finally:
        close_worker()

    assert (response.status_code, response.json()["status"]) == (202, "running")
    assert ended and Run.objects.get().status == Status.CANCELLED
