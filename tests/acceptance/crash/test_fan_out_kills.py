"""Hundreds of followers of one topic, and workers that are killed in the middle of its fan-out: each has it once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from project.process import wait_until
from tests.support import forks
from tests.support.patience import BOUND_S, seconds
from tests.support.site_process import Site

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]

# Each follower with the messages that the runs of its home have.
GIVEN = """
SELECT messages, count(*) AS followers FROM (
  SELECT f.id, count(m.id) AS messages FROM ravi_follow f
  LEFT JOIN ravi_run r ON r.session_id = f.home_id LEFT JOIN ravi_inboxmessage m ON m.run_id = r.id GROUP BY f.id
) AS given GROUP BY messages"""


@pytest.mark.parametrize(("followers", "batch", "kills"), [(600, 20, 2)])
def test_workers_killed_in_the_middle_deliver_to_each_follower_once(
    followers: int, batch: int, kills: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SITE_FAN_OUT_BATCH", str(batch))
    chance = random.Random(7)
    with TemporaryDirectory(prefix="ravi-crowd-") as folder, Site(Path(folder)) as site:
        _seed(site, followers)
        begun, killed_at = time.monotonic(), []
        while len(killed_at) < kills:
            worker = site.start_worker()
            before = _publication(site)["delivered"]
            target = before + chance.randrange(1, followers // (2 * kills))
            wait_until(lambda at=target: _publication(site)["delivered"] >= at, BOUND_S, poll=0.001)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.05))  # not always right behind a commit
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait_ended(seconds(10))
            killed_at.append(_publication(site)["delivered"])
        site.start_worker()
        done = wait_until(lambda: _publication(site)["done_at"] is not None, BOUND_S)
        assert done, _publication(site)
        wait_until(lambda: not site.query("SELECT FROM ravi_feeditem LIMIT 1"), BOUND_S)

        assert 0 < killed_at[0] < followers, killed_at
        assert site.query(GIVEN) == [{"messages": 1, "followers": followers}]
        assert _count(site, "ravi_inboxmessage") == _count(site, "ravi_run") == followers
        assert _publication(site)["delivered"] == followers
        woken = site.query("SELECT min(wake_seq) AS least, max(wake_seq) AS most FROM ravi_run WHERE wake_seq > 0")
        assert woken == [{"least": 1, "most": 1}]
    with capsys.disabled():
        print(f"\n{followers} followers, killed at {killed_at}: {time.monotonic() - begun:.1f} s")


def _seed(site: Site, followers: int) -> None:
    command = ["-m", "tests.acceptance.crash.crowd", str(followers)]
    forks.run(command, env={**os.environ, **site.env}, check=True, capture_output=True)


def _publication(site: Site) -> dict[str, Any]:
    return site.query("SELECT delivered, done_at FROM ravi_publication")[0]


def _count(site: Site, table: str) -> int:
    return int(site.query(f"SELECT count(*) FROM {table}")[0]["count"])
