"""`manage.py check` about Celery: it reads the Celery app in use, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core import checks

from project.celery import app
from ravi_django.conf import conf

BROKER = "redis://broker.example:6379/0"
SWEEP = {"task": "ravi.sweep", "schedule": 5}
NAMES = ("broker_url", "broker_write_url", "beat_schedule", "beat_scheduler")


@pytest.fixture
def in_use(settings: Any) -> Iterator[Any]:
    """The configuration of the Celery app in use; Django's settings say nothing about it."""
    before = {name: getattr(app.conf, name) for name in NAMES}
    settings.RAVI = {**settings.RAVI, "ENGINE": None, "LIMITS": None}
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}}
    settings.CELERY_BROKER_URL = None
    settings.CELERY_BEAT_SCHEDULE = {}
    app.conf.update(broker_write_url=BROKER, beat_schedule={"sweep": SWEEP})
    yield app.conf
    app.conf.update(before)


def found() -> list[str]:
    return [message.id for message in checks.run_checks(tags=["ravi"]) if message.id != "ravi.I001"]


def test_a_correct_site_hears_nothing_without_a_query_or_a_connection(
    in_use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a check opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    assert found() == []  # pytest refuses queries of a test without the mark django_db


def test_a_schedule_of_a_beat_app_is_not_asked_for(in_use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use.beat_schedule = {}
    assert found() == ["ravi.W003"]

    in_use.beat_scheduler = "redbeat.RedBeatScheduler"
    assert found() == []

    in_use.beat_scheduler = "celery.beat:PersistentScheduler"
    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "django_celery_beat" or installed(name))
    assert found() == []


def test_a_site_that_does_not_load_its_celery_app(in_use: Any, settings: Any) -> None:
    settings.CELERY_BROKER_URL = BROKER
    assert found() == []

    in_use.broker_url = in_use.broker_write_url = None
    (message,) = [message for message in checks.run_checks(tags=["ravi"]) if message.id == "ravi.W007"]
    assert message.msg == "the web process does not load your Celery app"
    assert message.hint == "from .celery import app as celery_app, in project/__init__.py"


def test_the_engine_is_celerys_where_there_is_a_broker(in_use: Any, settings: Any) -> None:
    assert conf.ENGINE == "celery"
    in_use.broker_url = in_use.broker_write_url = None
    assert conf.ENGINE == "inline"
    settings.CELERY_BROKER_URL = BROKER
    assert conf.ENGINE == "celery"
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    assert conf.ENGINE == "inline"
