"""The contract of store and engine, marked `sqlite`, on SQLite: Django reads its settings once a process, so in one of
their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
OURS = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "PYTEST_XDIST_WORKER")


@pytest.mark.timeout(1800)  # each test of that process has a timeout of its own
@pytest.mark.skipif(os.environ.get("RAVI_TEST_SQLITE") == "1", reason="this is that process")
def test_the_core_works_on_sqlite():
    env = {key: value for key, value in os.environ.items() if key not in OURS}
    marked = [path for path in sorted(ROOT.glob("tests/unit/**/test_*.py")) if "mark.sqlite" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "sqlite and not crash", "-q", "-p", "no:cacheprovider", *marked]

    done = subprocess.run(command, cwd=ROOT, env={**env, "RAVI_TEST_SQLITE": "1"}, capture_output=True, text=True)

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, output
    assert int(passed.group(1)) > 100, output
    assert "failed" not in done.stdout.splitlines()[-1], output
