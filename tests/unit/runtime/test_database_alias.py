"""The app's rows are read and written in one database, whatever the site's routers say."""

from __future__ import annotations

import pytest
from django.core.checks import ERROR, run_checks
from django.db import connections, router, transaction

from ravi_django import submit
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.testing import run_until_idle
from tests.support import template, world
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)


class PrimaryReplicaRouter:
    """As Django's documentation has it, with one replica."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, one, other, **hints):
        return True


@pytest.fixture
def stale_replica(monkeypatch, tmp_path):
    """A replica that has not received a row."""
    site = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(template.sqlite(tmp_path / "replica.sqlite3"))}
    databases = connections.configure_settings({"default": site, "replica": site})
    monkeypatch.setitem(connections.settings, "replica", databases["replica"])
    monkeypatch.setattr(router, "routers", [*router.routers, PrimaryReplicaRouter()])
    yield
    connections["replica"].close()
    del connections["replica"]


def test_a_router_that_reads_from_a_stale_replica_loses_no_wake_up(stale_replica):
    async def story(ctx, inbox):
        answer = await ctx.ask_human("Which colour?", ["red", "blue"])
        return answer["text"]

    code(story)
    with transaction.atomic():
        run = submit("test/code", "hi")
    run_until_idle()
    world.answer(HumanRequest.objects.get(run_id=run.id).id, text="blue")

    run_until_idle()

    run = Run.objects.get(id=run.id)
    assert (run.status, run.output) == (Status.COMPLETED, "blue")
    assert run.journal.exists()


@pytest.mark.parametrize(("alias", "problem"), [("other", "ravi.E022"), ("replica", "ravi.E023")])
def test_a_database_that_cannot_hold_the_rows_is_an_error(settings, monkeypatch, alias, problem):
    monkeypatch.setitem(settings.DATABASES, "replica", {})
    settings.RAVI = {**settings.RAVI, "DATABASE": alias}

    assert [found.id for found in run_checks(tags=["ravi"])] == [problem]


def with_mysql(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "mysql")


def with_psycopg_2(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)


def without_time_zones(settings, monkeypatch):
    settings.USE_TZ = False


@pytest.mark.parametrize(
    ("site", "problem"), [(with_mysql, "ravi.E025"), (with_psycopg_2, "ravi.E026"), (without_time_zones, "ravi.E027")]
)
def test_a_database_that_would_lose_runs_is_an_error(settings, monkeypatch, site, problem):
    site(settings, monkeypatch)

    assert [(found.id, found.level) for found in run_checks(tags=["ravi"])] == [(problem, ERROR)]
