"""`manage.py check` about Celery and sources, and the demo site's settings."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.apps import apps
from django.contrib.auth.models import Group
from django.core import checks, mail
from django.db import connections
from django.urls import clear_url_caches, re_path
from django.utils import autoreload
from django.views.static import serve

from project import urls as urlconf
from project.celery import app
from project.settings import database
from ravi_django import ReActAgent, tool
from ravi_django.conf import broker_url, conf
from ravi_django.management import diagnosis
from ravi_django.models import Run, Schedule, Source, WorkerProcess
from ravi_django.testing import registered
from tests.support import forks, world
from tests.support.cases import case
from tests.support.docs import Page
from tests.support.runs import make_run

BROKER = "redis://broker.example:6379/0"
SWEEP = {"task": "ravi.sweep", "schedule": 5}


@pytest.fixture
def in_use(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The configuration of the Celery app in use; Django's settings say nothing about it."""
    monkeypatch.delattr(mail, "outbox")  # else this is a process of tests, whose engine is "manual"
    settings.RAVI = {**settings.RAVI, "ENGINE": None, "LIMITS": None}
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer"}}
    settings.CELERY_BROKER_URL = None
    del settings.CELERY_BEAT_SCHEDULE  # celery before 5.6 reads it before the configuration
    app.conf.update(broker_write_url=BROKER, beat_schedule={"sweep": SWEEP})
    return app.conf


def found() -> list[str]:
    return [message.id for message in checks.run_checks(tags=["ravi"]) if message.id != "ravi.I001"]


def test_a_correct_site_hears_nothing_without_a_query_or_a_connection(in_use: Any, monkeypatch: Any) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a check opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert found() == []  # pytest refuses queries of a test without the mark django_db


def test_a_site_without_static_files_hears_it_where_a_server_needs_them(
    in_use: Any, settings: Any, monkeypatch: Any
) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "whitenoise" not in name]
    assert found() == ["ravi.W010"]  # DEBUG is off
    with monkeypatch.context() as site:
        urls = [*urlconf.urlpatterns, re_path(r"^static/(?P<path>.*)$", serve, {"document_root": "/srv/static"})]
        site.setattr(urlconf, "urlpatterns", urls)
        clear_url_caches()
        assert found() == [], "the site's own URLconf serves them"
    clear_url_caches()
    settings.DEBUG = True
    assert found() == ["ravi.W010"]  # for ASGI
    monkeypatch.setattr(sys, "argv", ["manage.py", "runserver"])
    assert found() == []
    settings.DEBUG, settings.STATIC_ROOT = False, "/srv/static"
    assert found() == []
    settings.STATIC_ROOT, settings.STATIC_URL = None, "https://cdn.example/"
    assert found() == []
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    assert found() == [], "a note that no other command prints"
    monkeypatch.setattr(sys, "argv", ["manage.py", "check"])
    assert found() == ["ravi.I004"]


def test_a_site_that_does_not_include_the_urls_hears_it(in_use: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = "rest_framework.urls"
    assert found() == ["ravi.W014"]
    settings.RAVI = {**settings.RAVI, "PAGES": False}
    assert found() == []


def test_a_new_file_of_agents_reloads_the_server(settings: Any, tmp_path: Path, monkeypatch: Any) -> None:
    settings.RAVI = {**settings.RAVI, "AGENTS_MODULE": "agents"}
    (tmp_path / "agents").mkdir()
    monkeypatch.setattr(apps.get_app_config("project"), "path", str(tmp_path))
    reloader, changed = autoreload.StatReloader(), list[Path]()
    monkeypatch.setattr(reloader, "notify_file_changed", changed.append)
    monkeypatch.setattr(reloader, "SLEEP_TIME", 0)
    autoreload.autoreload_started.send(sender=reloader)
    ticks = reloader.tick()
    next(ticks)
    assert changed == []
    (tmp_path / "agents" / "returns.py").touch()
    next(ticks)
    assert changed == [tmp_path / "agents"]


def test_the_line_of_the_docs_adds_the_sweep_to_the_schedule_of_a_site(in_use: Any) -> None:
    (line,) = re.findall(r"^    (CELERY_BEAT_SCHEDULE\[.*)$", Page("settings").text, re.MULTILINE)
    schedule = {"report": {"task": "shop.report", "schedule": 60}}
    in_use.beat_schedule = {**schedule}
    assert found() == ["ravi.W003"]

    exec(line, {"CELERY_BEAT_SCHEDULE": schedule})
    in_use.beat_schedule = schedule

    assert (found(), sorted(schedule)) == ([], ["ravi-sweep", "report"])


def test_a_schedule_of_a_beat_app_is_not_asked_for(in_use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use.beat_schedule = {}
    assert found() == ["ravi.W003"]
    in_use.beat_scheduler = "redbeat.RedBeatScheduler"
    assert found() == []
    in_use.beat_scheduler = "celery.beat:PersistentScheduler"
    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "django_celery_beat" or installed(name))
    assert found() == []


def test_a_site_that_does_not_load_its_celery_app(in_use: Any, settings: Any, monkeypatch: Any) -> None:
    settings.CELERY_BROKER_URL = BROKER
    assert found() == []
    monkeypatch.setattr("celery.current_app", Celery(set_as_current=False))
    (message,) = [message for message in checks.run_checks(tags=["ravi"]) if message.id == "ravi.W007"]
    assert message.msg == "the web process does not load your Celery app"
    assert message.hint == "from .celery import app as celery_app, in project/__init__.py"


def test_the_engine_is_celerys_where_there_is_a_broker(in_use: Any, settings: Any) -> None:
    assert conf.ENGINE == "celery"
    in_use.broker_url = in_use.broker_write_url = None
    assert conf.ENGINE == "inline"
    for several in (["redis://a/3", "redis://b/3"], "redis://a/3;redis://b/3"):
        settings.CELERY_BROKER_URL = several
        assert (conf.ENGINE, broker_url()) == ("celery", "redis://a/3")
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    assert conf.ENGINE == "inline"


def test_connections_that_each_thread_of_a_web_process_keeps(in_use: Any, settings: Any, monkeypatch: Any) -> None:
    for seconds in (None, 60):
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", seconds)
        assert found() == ["ravi.W008"]
    settings.ASGI_APPLICATION = None
    assert found() == []


def test_the_doctor_names_a_directory_where_others_find_uploads(settings: Any, tmp_path: Path) -> None:
    """The demo site serves its MEDIA_ROOT by the app alone."""
    local = "django.core.files.storage.FileSystemStorage"
    kept = {"ravi": {"BACKEND": local, "OPTIONS": {"location": str(tmp_path)}}}
    for root, url, more, words in (
        (settings.MEDIA_ROOT, "", {}, None),
        (tmp_path, "media/", {}, "below MEDIA_ROOT, which the site serves at /media/"),
        ("", "", {}, f"there is no MEDIA_ROOT, so uploads are in {Path.cwd()}"),
        ("", "media/", kept, None),
    ):
        settings.MEDIA_ROOT, settings.MEDIA_URL, settings.STORAGES = root, url, {**settings.STORAGES, **more}
        with case(words):
            assert [words in finding.what for finding in diagnosis.files()] == ([] if words is None else [True])


def findings() -> list[tuple[str, str]]:
    return [(found.level, found.what) for found in world.doctor_sources()]


@pytest.mark.django_db
def test_the_doctor_names_the_sources_that_fail():
    assert findings() == []

    def made(name: str, kind: str = "feed", **fields: Any) -> None:
        Source.objects.create(name=name, kind=kind, agent="test/code", **fields)

    made("fine")
    made("bad\u202e", failures=4, error="no\n answer <b>\x07" + "x" * 900)
    made("hook", kind="webhook")
    made("switched off", enabled=False, error="gone", failures=9)
    (first, failing, silent) = findings()
    assert first == ("ok", "sources: 3 enabled")
    assert failing[0] == silent[0] == "warning"
    assert (
        failing[1].startswith("sources: bad\\u202e, 4 times in a row: no answer <b>\\u0007xxx")
        and len(failing[1]) < 400
    )
    assert silent[1] == "sources: hook: it has no secret, so it rejects all posts"
    for number in range(10):
        made(str(number), error="no")
    assert findings()[-1] == ("warning", "sources: 7 more have an error")

    Source.objects.create(name="bad", agent="test/code", error="no")
    assert all(found.fix for found in world.doctor_sources() if found.level != "ok")


@pytest.mark.django_db
def test_the_doctor_names_an_approvers_group_that_does_not_exist() -> None:
    @tool(risk="high", approvers=[("group:finance", 60), "group:directors"])
    def refund() -> None:
        """Refund."""

    Group.objects.create(name="directors")
    with registered(ReActAgent("payer", model="rehearsal", tools=[refund])):
        (finding,) = [one for one in diagnosis.people() if "react/payer" in one.what]
    assert finding.what.startswith("people: there is no group:finance, which approves calls (react/payer, refund)")


@pytest.mark.django_db
def test_the_doctor_names_agents_that_no_code_has_and_that_have_work() -> None:
    def faults() -> list[str]:
        return [finding.what for finding in diagnosis.agents() if finding.level == "warning"]

    assert faults() == []
    world.worker_seen("this", 0)
    WorkerProcess.objects.create(name="other", seen_at=world.now(), started_at=world.now(), agents=["react/elsewhere"])
    make_run("react/elsewhere")
    for status in ("suspended", "pending", "completed"):
        Run.objects.filter(id=make_run("react/old-name").id).update(status=status)
    make_run("react/assistant")
    for name, agent, enabled in (("a", "react/gone", True), ("b", "react/off", False), ("c", "react/assistant", True)):
        Schedule.objects.create(name=name, agent=agent, enabled=enabled, input="hi", every_s=60)
    assert faults() == [
        "agents: no live worker has react/old-name, and 2 unfinished runs wait for one that has it",
        "agents: react/gone cannot be run, and enabled schedules submit to it",
    ]
    WorkerProcess.objects.filter(name="this").delete()
    assert [fault.split(",")[0] for fault in faults()] == [
        "agents: no live worker has react/assistant",
        "agents: no live worker has react/old-name",
        "agents: react/assistant cannot be run",
        "agents: react/gone cannot be run",
    ]


def test_load_with_no_environment_and_no_services() -> None:
    script = (
        "import django; django.setup()\n"
        "from django.conf import settings as s\n"
        "print(s.DATABASES['default']['ENGINE'], s.RAVI['ENGINE'], s.CHANNEL_LAYERS['default']['BACKEND'])"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "project.settings", "PATH": os.environ["PATH"]}
    done = forks.run(["-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["django.db.backends.sqlite3", "inline", "channels.layers.InMemoryChannelLayer"]


def test_urls_of_databases() -> None:
    settings = database("postgres://us%40er:p%2Fw@db.example:6432/my%20site?sslmode=require")
    assert settings == {
        "ENGINE": "django.db.backends.postgresql", "NAME": "my site", "USER": "us@er", "PASSWORD": "p/w",
        "HOST": "db.example", "PORT": "6432", "OPTIONS": {"sslmode": "require"},
    }  # fmt: skip
    # sqlite url takes the write lock at once
    for url, name in [("sqlite:////var/site.sqlite3", "/var/site.sqlite3"), ("sqlite:///site.sqlite3", "site.sqlite3")]:
        with case(url, name):
            settings = database(url)
            assert (settings["NAME"], settings["OPTIONS"]["transaction_mode"]) == (name, "IMMEDIATE")
            assert "journal_mode=WAL" in settings["OPTIONS"]["init_command"]
    # another database is refused in words
    with pytest.raises(ValueError, match=r"begins with 'mysql': use postgres://… or sqlite:///…"):
        database("mysql://localhost/site")
