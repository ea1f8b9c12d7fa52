"""The tests of docs/howto/testing.md and docs/AGENTS.md run on README's site, under both runners, on both databases."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command

from tests.support import forks, template
from tests.support.docs import ROOT, Page, write
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.full

PAGE = Page("testing")
SERVER = os.environ.get("RAVI_TEST_POSTGRES", "")
DATABASE = f"ravi_docs_testing_{os.getpid()}"
POSTGRESQL = f"""
from project.settings import DATABASES, INSTALLED_APPS, RAVI
INSTALLED_APPS += ["shop"]
DATABASES["default"]["TEST"] = {{"NAME": "{DATABASE}", "TEMPLATE": "{template.DATABASE}", "MIGRATE": False}}
"""
DJANGO = ("manage.py", "test", "--noinput", "shop.tests")
PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "ignore:Module already imported"),
    *("shop/tests.py", "shop/refunds_test.py", "shop/test_desk.py"),
)

THREADS = """
import threading, time

import pytest
from django.contrib.auth.models import Group
from django.db import transaction


@pytest.mark.django_db(transaction=True)
def test_a_row_of_another_thread_is_not_rolled_back():
    thread = threading.Thread(target=Group.objects.create, kwargs={"name": "of the thread"})
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Group.objects.create(name="rolled back")
        thread.start()
        time.sleep(0.3)  # without the lock it writes now
        1 / 0
    thread.join()
    assert [group.name for group in Group.objects.all()] == ["of the thread"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A new site with the blocks of README, and the tests of the page."""
    call_command("startproject", "shop", tmp_path)
    for block in (*Page("README").blocks, *PAGE.blocks, *Page("AGENTS").blocks):
        if block.file.startswith("shop/"):
            write(tmp_path, block)
    return tmp_path


def run_tests(site: Path, command: tuple[str, ...], settings: str, **names: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": settings, **names}
    ran = forks.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=3 * BOUND_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.mark.timeout(240)
def test_on_the_readmes_site_and_sqlite_in_memory_the_runner_of_django_prints_nothing_else(site: Path) -> None:
    ran = run_tests(site, DJANGO, "shop.settings")

    lines = [line for line in ran.stderr.splitlines() if line and not line.startswith(("-", "Ran 1 test in "))]
    around = "{} test database for alias 'default'..."
    assert lines == [around.format("Creating"), ".", "OK", around.format("Destroying")]


@pytest.mark.timeout(240)
def test_on_the_readmes_site_and_sqlite_in_memory_pytest_prints_nothing_else(site: Path) -> None:
    (site / "shop/test_threads.py").write_text(THREADS)

    ran = run_tests(site, (*PYTEST, "shop/test_threads.py"), "shop.settings")

    assert (ran.stderr, ran.stdout.count("\n")) == ("", 2), ran.stdout
    assert "6 passed" in ran.stdout


@pytest.mark.skipif(not SERVER, reason="needs the template: DATABASE_URL was given, or this is SQLite")
@pytest.mark.parametrize("command", [DJANGO, PYTEST], ids=["manage.py test", "pytest-django"])
def test_on_postgresql_they_run_with_settings_for_tests_and_the_database_can_be_dropped(
    command: tuple[str, ...], site: Path
) -> None:
    with (site / "shop/settings.py").open("a") as file:
        file.write(POSTGRESQL)

    ran = run_tests(site, command, "shop.settings_of_tests", DATABASE_URL=SERVER)

    with psycopg.connect(SERVER) as server:
        left = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
    assert left is None, ran.stdout + ran.stderr
