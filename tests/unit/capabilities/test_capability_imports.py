"""Each part can be the first that a process imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = [
    "addresses",
    "outbound",
    "feeds.adapter",
    "feeds.drop",
    "feeds.fetch",
    "feeds.parse",
    "feeds.signatures",
    "llm.remote",
    "tools.http_fetch",
]


@pytest.mark.parametrize("name", FIRST)
def test_a_part_can_be_imported_before_all_others(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import ravi_django.capabilities.{name}"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
