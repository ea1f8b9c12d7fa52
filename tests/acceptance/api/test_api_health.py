"""GET health/: green with all there, red for each thing that is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer, channel_layers
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper
from rest_framework.test import APIClient

from project.process import wait_until
from ravi_django.api import metrics as view
from ravi_django.management import diagnosis
from ravi_django.models import Erasure, SweepState, WorkerProcess
from ravi_django.testing import FakeClock
from tests.acceptance.api.api_support import client_of
from tests.support import forks, world
from tests.support.patience import BOUND_S
from tests.support.world import check_all

# Looked at on other threads: rows must be committed.
pytestmark = pytest.mark.django_db(transaction=True)
NAMES = ["database", "broker", "channel_layer", "events", "worker", "sweep", "erasures"]
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _ask_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(view, "FRESH_S", -1.0)
    yield
    channel_layers.backends.clear()


@pytest.fixture
def working_site(db: None) -> Iterator[None]:
    """A worker that was seen, a sweep that ran; the clock stands still."""
    with FakeClock():
        world.worker_seen("w1", 0)
        world.processes_swept()
        yield


def failing(checks: Any = None) -> dict[str, str]:
    return {check.name: check.detail for check in checks or check_all() if not check.ok}


def test_a_fresh_site_waits_for_its_worker_and_its_sweep(db: None, anonymous: APIClient) -> None:
    response = anonymous.get("/ravi/health/")

    assert (response.status_code, response.json()) == (503, {"status": "unavailable"})
    assert set(failing()) == {"worker", "sweep"}


def test_open_erasures_are_told_and_no_reason_to_fail(working_site: None, admin_user: Any) -> None:
    with FakeClock() as clock:
        for age in (7200, 60):
            Erasure.objects.create(created_at=clock.now - timedelta(seconds=age))
        found = {check.name: check for check in check_all()}["erasures"]

    assert (found.ok, found.detail) == (True, "2 are open, the oldest for 7200 s")
    assert [finding.what for finding in diagnosis.services() if "erasures" in finding.what]


def test_details_are_for_staff(working_site: None, user: Any, admin_user: Any) -> None:
    assert client_of(user).get("/ravi/health/").json() == {"status": "ok"}

    found = client_of(admin_user).get("/ravi/health/").json()

    assert list(found["checks"]) == NAMES
    assert all(set(check) == {"ok", "detail"} and check["ok"] is True for check in found["checks"].values())


def test_all_is_well_and_bad_credentials_are_no_hindrance(working_site: None, anonymous: APIClient) -> None:
    for headers in ({}, {"Authorization": "Token nonsense"}):
        response = anonymous.get("/ravi/health/", headers=headers)
        assert (response.status_code, response.json()) == (200, {"status": "ok"}), failing()


def test_a_late_worker_and_a_late_sweep_are_red(working_site: None, settings: Any) -> None:
    seen, beat = WorkerProcess.objects.filter(name="w1"), settings.RAVI.get("HEARTBEAT_S", 10.0)

    seen.update(seen_at=world.clock_after(-2.5 * beat))
    SweepState.objects.update(ran_at=world.clock_after(-14.0))
    assert failing() == {}
    seen.update(seen_at=world.clock_after(-3.5 * beat))
    assert set(failing()) == {"worker"}
    seen.update(seen_at=world.clock_after(0.0))
    SweepState.objects.update(ran_at=world.clock_after(-25.0))
    assert set(failing()) == {"sweep"}
    assert "25 s ago" in failing()["sweep"]


def test_a_broker_that_is_down_is_red(working_site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from project.celery import app

    world.patch(monkeypatch, "LIMIT_S", BOUND_S)
    app.conf.broker_url = app.conf.broker_write_url = NOWHERE
    found = failing()

    assert set(found) == {"broker"}
    assert "no answer" not in found["broker"], "the check ended by itself, not at its limit"


def test_without_celery_neither_the_broker_nor_beat_matters(working_site: None, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    assert "broker" not in [check.name for check in check_all()]

    SweepState.objects.update(ran_at=world.clock_after(-60.0))
    assert failing() == {"sweep": "the last sweep ran 60 s ago; start one: manage.py ravi_worker"}
    SweepState.objects.all().delete()
    assert failing() == {"sweep": "no sweep has run yet; start one: manage.py ravi_worker"}


def test_redis_that_is_down_is_red(working_site: None, settings: Any) -> None:
    site = settings.RAVI
    settings.RAVI = {**site, "STREAM_URL": NOWHERE}
    assert set(failing()) == {"events"}
    settings.RAVI = {**site, "STREAM_URL": settings.REDIS_URL}
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [NOWHERE]}}
    }
    channel_layers.backends.clear()
    assert set(failing()) == {"channel_layer"}


def test_a_channel_layer_that_loses_messages_is_red(working_site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(InMemoryChannelLayer):
        async def send(self, channel: str, message: Any) -> None:
            pass

    world.patch(monkeypatch, "ANSWER_S", 0.2)
    channel_layers.backends["default"] = Lossy()

    assert set(failing()) == {"channel_layer"}


def test_a_database_that_is_down_is_red_and_answered_all_the_same(working_site, admin_user, monkeypatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("the database is away")

    client = client_of(admin_user)
    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", refuse)  # each check opens one of its own

    response = client.get("/ravi/health/")

    assert (response.status_code, response.json()["status"]) == (503, "unavailable")
    assert {name for name, check in response.json()["checks"].items() if not check["ok"]} == {
        *("database", "worker", "sweep", "erasures")
    }


def test_a_service_that_does_not_answer_at_all_does_not_hang_it(working_site, monkeypatch) -> None:
    hang = threading.Event()
    world.patch(monkeypatch, "LIMIT_S", 0.3)
    world.patch(monkeypatch, "health_events", hang.wait)
    try:
        found = failing()
    finally:
        hang.set()

    assert "no answer" in found["events"]


def test_many_that_ask_at_once_cost_one_look(working_site, anonymous, monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(view, "FRESH_S", 60.0)
    world.patch(monkeypatch, "health_last", (float("-inf"), []))
    monkeypatch.setattr(view, "check_all", lambda: looks.append(1) or [world.Check("database", True, "")])

    answers = [anonymous.get("/ravi/health/").status_code for _ in range(5)]

    assert answers == [200] * 5
    assert len(looks) == 1


def test_it_leaves_no_connection_behind(working_site: None) -> None:
    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    before = count()
    assert failing() == {}

    assert wait_until(lambda: count() <= before, BOUND_S)


def test_another_database_of_the_site_that_is_down_is_no_hindrance() -> None:
    """Django opens a transaction in each database with ATOMIC_REQUESTS before it calls a view."""
    code = """
import django
from project.settings import DATABASES
DATABASES["legacy"] = DATABASES["default"] | {"HOST": "127.0.0.1", "PORT": "1", "ATOMIC_REQUESTS": True}
django.setup()
from django.test import Client
print(Client(headers={"host": "localhost"}).get("/ravi/health/").json())
"""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}

    done = forks.run(["-c", code], env=env, capture_output=True, text=True, timeout=BOUND_S)

    assert "'status': " in done.stdout, done.stderr
