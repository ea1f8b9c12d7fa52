"""`manage.py ravi_doctor`: each thing that is wrong, and its fix."""

from __future__ import annotations

import re

import pytest

from project.process import wait_until
from project.services import free_port
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.timeout(180), pytest.mark.full]


def test_a_site_where_all_is_well(inline_site) -> None:
    with inline_site.managed("ravi_worker") as worker:
        assert worker.says("Ctrl-C drains"), worker.text

        said = []  # the worker serves before its first sweep has ended
        wait_until(lambda: said.append(inline_site.manage("ravi_doctor")) or said[-1].returncode == 0, BOUND_S)

    done = said[-1]
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines[:-1]), done.stdout
    assert lines[-1] == f"ravi_doctor: ok={len(lines) - 1} warnings=0 errors=0"
    for named in (
        "settings:",
        "database:",
        "migrations:",
        "agents: information/business, information/music",
        "model:",
        "events:",
        "worker:",
        "sweep:",
    ):
        assert named in done.stdout


def test_a_database_without_tables(sqlite_site, tmp_path) -> None:
    done = sqlite_site.with_(DATABASE_URL=f"sqlite:///{tmp_path}/new.sqlite3").manage("ravi_doctor")

    assert done.returncode == 1
    assert "error    migrations: not applied: ravi.0001_initial" in done.stdout
    assert re.findall("fix: (.*)", done.stdout)[-1] == "manage.py migrate"  # and no fix of what only lacks its table


def test_a_database_that_is_not_there(postgres_site) -> None:
    address = f"postgres://nobody:nothing@127.0.0.1:{free_port()}/none"

    done = postgres_site.with_(DATABASE_URL=address).manage("ravi_doctor")

    assert done.returncode == 1
    assert "error    database: OperationalError" in done.stdout
    assert "fix: start it, or fix DATABASES" in done.stdout
    assert "Traceback" not in done.stderr


def test_nobody_works_and_redis_is_gone(postgres_site) -> None:
    postgres_site.empty()  # a worker of an earlier test counts as alive for three heartbeats

    port = free_port()

    done = postgres_site.with_(REDIS_URL=f"redis://127.0.0.1:{port}/0").manage("ravi_doctor")

    assert done.returncode == 1
    for name in ("broker", "channel_layer", "events", "worker"):
        assert f"error    {name}: " in done.stdout
    assert re.search(rf"error    broker: \S*127\.0\.0\.1:{port}/0: \w+Error", done.stdout)
    assert "error    worker: no worker consumes the queue ravi" in done.stdout
    assert "fix: celery -A <site> worker -P threads -c 200 -Q ravi" in done.stdout


def test_a_model_without_its_key(sqlite_site) -> None:
    absent = sqlite_site.with_(RAVI_MODEL="openai/gpt-4o", OPENAI_API_KEY="")
    present = sqlite_site.with_(RAVI_MODEL="openai/gpt-4o", OPENAI_API_KEY="sk-something")

    missing, there = absent.manage("ravi_doctor").stdout, present.manage("ravi_doctor").stdout

    assert "error    model: openai/gpt-4o has no API key: information/business, " in missing
    assert "fix: set OPENAI_API_KEY" in missing
    assert "ok       model: openai/gpt-4o: information/business, " in there
    assert "sk-something" not in there


def test_a_model_without_a_price_is_listed_by_doctor_and_check(sqlite_site) -> None:
    site = sqlite_site.with_(RAVI_MODEL_API_BASE="http://127.0.0.1:9/v1")

    ours, listed = (site.with_(RAVI_MODEL=name) for name in ("openai/ours", "gpt-4o"))

    found = ours.manage("ravi_doctor").stdout
    assert "warning  model: openai/ours has no price, so a budget in dollars refuses it: information/bus" in found
    assert found.count('RAVI["UNKNOWN_PRICE"]') == 1
    assert "has no price" not in listed.manage("ravi_doctor").stdout
    check = ours.manage("check").stderr
    assert check.count("ravi.W016") == 1 and "refuses: openai/ours (information/business, " in check
    assert "ravi.W016" not in listed.manage("check").stderr


def test_settings_that_the_checks_complain_of(sqlite_site) -> None:
    """The inline engine's settings under celery: no broker, no layer that reaches another process."""
    done = sqlite_site.with_(RAVI_ENGINE="celery").manage("ravi_doctor")

    assert "warning  ravi.W001" in done.stdout
    assert "warning  ravi.W002" in done.stdout
    assert "fix: CHANNEL_LAYERS =" in done.stdout
