"""`make bench`: each benchmark runs on the real stack and prints its figures. The values are not judged here."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import report, run
from benchmarks.peers import comparison
from benchmarks.peers.comparison import Compared
from benchmarks.report import Figure
from project.process import ProcessError
from tests.support import forks
from tests.support.patience import BOUND_S, seconds

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gate
@pytest.mark.timeout(600)
def test_the_bill_is_the_providers(tmp_path: Path) -> None:
    """Of 100 requests: 20 stops, 10 cuts, 10 fallbacks, and 5 workers that are killed in the middle of an answer."""
    out = tmp_path / "out.json"

    command = ["-m", "tests.support.forked_bench", "--quick", "--only", "bill", "--out", str(out)]
    done = forks.run(command, capture_output=True, text=True, timeout=seconds(590))

    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert {*map(frozenset, figures)} == {frozenset(("name", "turns", "value", "unit", "ratio_to_raw_commit", "load"))}
    assert done.stdout.splitlines()[0].split()[:4] == ["figure", "turns", "value", "unit"]
    assert done.stdout.splitlines()[-1].startswith("bench: bill_")
    bill = {figure["name"].removeprefix("bill_"): figure["value"] for figure in figures}
    assert (bill["missing"], bill["twice"]) == (0, 0), bill
    assert bill["requests"] > 100 and all(bill[name] for name in ("stopped", "cut", "fallback", "lost")), bill
    assert abs(bill["reported_off"]) < 1 and abs(bill["estimated_off"]) < 5, bill


@pytest.mark.gate
def test_every_module_imports() -> None:
    modules = [f"benchmarks.{path.stem}" for path in ROOT.glob("benchmarks/*.py")]
    code = f"import django, importlib; django.setup(); [*map(importlib.import_module, {modules})]"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"}

    done = forks.run(["-c", code], env=env, capture_output=True, text=True, timeout=BOUND_S)

    assert done.returncode == 0, done.stderr


def test_a_benchmark_that_does_not_exist_is_a_fault() -> None:
    done = forks.run(["-m", "benchmarks.run", "--only", "nothing"], capture_output=True, text=True, timeout=BOUND_S)

    assert done.returncode != 0
    assert "no benchmark 'nothing'" in done.stderr


def test_a_benchmark_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    def failing(stack, plan):
        yield Figure("before_the_fault", None, 1.0, "s")
        raise ProcessError("the worker did not start")

    out, emptied = tmp_path / "out.json", []
    servers = SimpleNamespace(empty=lambda: emptied.append(1))
    working = [Figure("of_the_next", None, 2.0, "s")]
    monkeypatch.setattr(run.stack, "servers", lambda pooled: nullcontext(servers))
    monkeypatch.setattr(run.stack, "set_up_site", lambda: None)
    monkeypatch.setattr(run, "BENCHMARKS", {"bad": failing, "good": lambda stack, plan: working})
    monkeypatch.setattr(sys, "argv", ["bench", "--out", str(out)])

    assert run.main() == 1

    printed = capsys.readouterr()
    assert [figure["name"] for figure in json.loads(out.read_text())] == ["before_the_fault", "of_the_next"]
    assert printed.out.splitlines()[-1] == "bench: before_the_fault=1 of_the_next=2"
    assert "the worker did not start" in printed.err
    assert printed.err.splitlines()[-1] == "bench: failed: bad"
    assert len(emptied) == 2


@pytest.mark.gate
def test_the_comparison_with_peers_is_a_table_with_dashes_that_names_the_peers_ahead() -> None:
    figures = [
        Compared("step", 10, 2.0, "ms", 4.0, 0.5, system="ravi_django", of_ours=1.0),
        Compared("step", 10, 1.0, "ms", 2.0, 0.5, system="absurd", of_ours=0.6),
        Compared("step", 10, 4.0, "ms", 8.0, 0.5, system="dbos", of_ours=2.1),
        Compared("recovery", None, 4.0, "s", None, 0.5, system="ravi_django", of_ours=1.0),
        Compared("recovery", None, 3.9, "s", None, 0.5, system="absurd"),
    ]

    lines = report.table(comparison.rows(figures, ["ravi_django", "absurd", "dbos"])).splitlines()

    assert [line.split() for line in lines[2:]] == [
        ["step_10,", "ms", "ravi_django", "2", "0.50", "4.0x", "1.00x", "0.5"],
        ["step_10,", "ms", "absurd", "1", "0.50", "2.0x", "0.60x", "0.5"],
        ["step_10,", "ms", "dbos", "4", "0.50", "8.0x", "2.10x", "0.5"],
        ["recovery,", "s", "ravi_django", "4", "-", "-", "1.00x", "0.5"],
        ["recovery,", "s", "absurd", "3.9", "-", "-", "-", "0.5"],
        ["recovery,", "s", "dbos", "-", "-", "-", "-", "-"],
    ]
    assert comparison.ahead(figures) == ["absurd is ahead in step_10: 1 ms, 0.60 of ours"]
    assert comparison.ahead(figures[2:]) == ["no peer is ahead"]
    assert report.closing_line("bench-peers", figures[1:2]) == "bench-peers: absurd_step_10=1"
