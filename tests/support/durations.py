"""The files of tests that take longest are handed out first, so that all workers end at about the same time.

`durations.json` has the seconds of each file; a file that it lacks counts as an average one. Record it anew with
`make test-all ARGS=--record-durations`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("durations.json")
HELP = "write the seconds of each file that runs to tests/support/durations.json"


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sorted by file; tests of one file keep their order."""
    known = json.loads(RECORD.read_text())
    average = mean(known.values())
    return sorted(items, key=lambda item: -known.get(_file(item.nodeid), average))


class Recorder:
    """A plugin of the process that reports. Files that did not run keep their record."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        kept = {file: seconds for file, seconds in json.loads(RECORD.read_text()).items() if (ROOT / file).exists()}
        measured = {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        RECORD.write_text(json.dumps(kept | measured, indent=0, sort_keys=True) + "\n")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
