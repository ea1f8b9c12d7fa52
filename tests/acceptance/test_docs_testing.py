"""docs/testing.md: its test runs under both runners, which drop the PostgreSQL database at the end."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.support import forks, template
from tests.support.docs import ROOT, Page
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.full

PAGE = Page("testing")
SERVER = os.environ.get("RAVI_TEST_POSTGRES", "")
DATABASE = f"ravi_docs_testing_{os.getpid()}"
SETTINGS = f"""
DATABASES["default"]["TEST"] = {{"NAME": "{DATABASE}", "TEMPLATE": "{template.DATABASE}", "MIGRATE": False}}
"""


@pytest.mark.skipif(not SERVER, reason="needs the template: DATABASE_URL was given, or this is SQLite")
@pytest.mark.parametrize(
    "command",
    [("-m", "django", "test", "--noinput", "test_shop"), ("-m", "pytest", "-p", "no:cacheprovider", "test_shop.py")],
    ids=["manage.py test", "pytest-django"],
)
def test_the_documented_test_runs_and_its_database_can_be_dropped(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(PAGE.code("shop/tests.py"))
    (tmp_path / "site_settings.py").write_text(
        PAGE.code("mysite/test_settings.py").replace("mysite.settings", "project.settings") + SETTINGS
    )
    environment = {
        **os.environ,
        "DATABASE_URL": SERVER,
        "DJANGO_SETTINGS_MODULE": "site_settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }

    ran = forks.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND_S)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    with psycopg.connect(SERVER) as server:
        left = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
    assert left is None, ran.stdout + ran.stderr
