"""The traced requests of docs/internals/architecture.md do not get longer without notice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SLACK = 1.03  # some functions depend on the order of threads

pytestmark = pytest.mark.full


def figures(table: str) -> list[int]:
    total = re.search(r"^\| all \|(.+)\|$", table, re.MULTILINE)
    assert total, table
    return [int(figure) for figure in re.findall(r"\d+", total[1])]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions are functions in 3.11 alone")
def test_three_requests_enter_at_most_what_the_page_says() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAVI_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.walks"], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    traced, stated = figures(done.stdout + done.stderr), figures((ROOT / "docs/internals/architecture.md").read_text())
    assert len(traced) == len(stated) == 6
    assert all(new <= old * SLACK for new, old in zip(traced, stated, strict=True)), done.stdout
