"""PostgreSQL is stopped while effects happen, and is back before the lease is over: their results are kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.acceptance.crash.checks import Evidence
from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.story import Step, Story
from tests.support.columns import PHASES
from tests.support.patience import seconds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

LEASE_S, AWAY_S = 12.0, 6.0  # a heartbeat a quarter: nine seconds are left at least
SLOWEST_S = 1.4  # of each half of an effect: all of them begin before the first half ends
RESULTS = "SELECT count(*) AS n FROM ravi_journalentry WHERE name = 'at_most_once' AND phase = %s"


def test_twenty_results_outlast_a_stopped_database(tmp_path: Path) -> None:
    story = Story.of([Step("at_most_once", number) for number in range(20)])
    with Lab(tmp_path, workers=1, max_runs=5, slowest_s=SLOWEST_S, CRASH_LEASE_S=str(LEASE_S)) as lab:

        def rows(phase: str) -> int:
            return int(lab.query(RESULTS, PHASES[phase])[0]["n"])

        run_id = lab.submit(story)
        assert lab.until(lambda: rows("started") == 20, seconds(30))
        before = rows("result")
        lab.postgres.stop()
        time.sleep(AWAY_S)
        happened = [line["number"] for line in lab.ledger() if line["kind"] == "at_most_once"]
        lab.postgres.start()

        assert lab.until(lambda: lab.run(run_id)["status"] == "completed", seconds(60)), lab.run(run_id)

        assert (before < 20, sorted(happened)) == (True, list(range(20)))
        assert (rows("result"), lab.run(run_id)["lease_epoch"], lab.takeovers) == (20, 1, 0)
        assert lab.query("SELECT * FROM ravi_humanrequest") == []
        assert Evidence(lab).violations() == []
