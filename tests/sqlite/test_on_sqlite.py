"""The tests marked `sqlite` again, on SQLite: Django reads its settings once a process, so in one of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("RAVI_TEST_SQLITE") == "1", reason="this is that process")
def test_the_core_works_on_sqlite():
    env = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}
    command = [sys.executable, "-m", "pytest", "-m", "sqlite", "-q", "-p", "no:cacheprovider", "tests/unit"]

    done = subprocess.run(
        command, cwd=ROOT, env={**env, "RAVI_TEST_SQLITE": "1"}, capture_output=True, text=True, timeout=840
    )

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, output
    assert int(passed.group(1)) > 20, output
    assert "failed" not in done.stdout.splitlines()[-1], output
