"""Feeds are polled at a rate: the benchmark of it, with few of them; 1,000 in a minute is what `make bench` shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
def test_sixty_feeds_take_a_process_no_sixty_seconds(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--only", "sources", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(out.read_text())}
    assert figures["sources_new_feeds"] > 200, "a minute; 2,000 on a busy machine with two cores"
    assert figures["sources_unchanged_feeds"] > figures["sources_new_feeds"]
