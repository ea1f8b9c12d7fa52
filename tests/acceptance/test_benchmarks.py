"""`make bench` works: each benchmark runs on the real stack and says what it found, which is not judged here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_quick_bench_prints_a_table_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert all(
        set(figure) == {"name", "turns", "value", "unit", "ratio_to_raw_commit"} and figure["value"] is not None
        for figure in figures
    )
    head, *_, last = done.stdout.splitlines()
    assert head.split()[:4] == ["figure", "turns", "value", "unit"]
    name, _, rest = last.partition(": ")
    shown = dict(pair.split("=") for pair in rest.split(" "))
    assert name == "bench"
    assert len(shown) == len(figures) > 20
    assert [key for key, value in shown.items() if not math.isfinite(float(value))] == []  # a difference may be below 0


def test_a_benchmark_that_does_not_exist_is_a_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0
    assert "no benchmark 'nothing'" in done.stderr
