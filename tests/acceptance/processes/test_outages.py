"""The servers under the site go away, come back empty, or are restarted."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from project.process import wait_until
from tests.support.patience import seconds
from tests.support.site_process import LEASE_S, MARGIN_S, Site, Worker

STEPS = 5


def assert_numbered(frames: list[dict[str, Any]], gaps: int) -> None:
    """Rising by one, but for so many announced gaps."""
    assert [frame["type"] for frame in frames].count("stream.gap") == gaps
    last = 0
    for frame in frames:
        last = frame["to"] if frame["type"] == "stream.gap" else last
        assert frame["seq"] == last + 1, frame
        last = frame["seq"]


@pytest.mark.full
def test_a_run_is_submitted_and_driven_while_the_broker_is_down(site: Site, worker: Worker) -> None:
    about = site.model.conversation("no broker", steps=1)
    workers = [one for one in site.workers if one.child.running]  # other tests leave some that have ended
    site.valkey.stop()
    try:
        worker.wait_for("Connection to broker lost")
        run_id = site.submit(about)
        site.completed(run_id)  # a worker looks for runs itself: no hint arrives
        for other in workers:  # after 2 s, after 4 s: Celery itself will not be back for a while
            other.wait_for("Trying again in 4.00 seconds")
    finally:
        site.valkey.start()

    assert about.calls() == [1, 2]
    assert_numbered(site.wait_streamed(run_id), gaps=0)
    for other in workers:
        site.wait_consuming(other, run_id)


def test_an_emptied_valkey_costs_one_announced_gap(site: Site, worker: Worker) -> None:
    about = site.model.conversation("emptied", steps=STEPS, hold={4})
    run_id = site.submit(about)
    about.wait_held(4)
    wait_until(lambda: len(site.events(run_id)) >= 10, seconds(5))
    before = site.events(run_id)

    with redis.Redis.from_url(site.valkey.url) as client:
        client.flushall()
    about.release()
    site.completed(run_id)

    after = site.wait_streamed(run_id)
    gap = after[0]
    assert_numbered(before, gaps=0)
    assert gap["type"] == "stream.gap" and gap["from"] == 1 and gap["to"] >= before[-1]["seq"]
    assert_numbered([{**gap, "seq": gap["to"] + 1}, *after[1:]], gaps=1)
    assert gap["seq"] == gap["to"] + 1
    assert [frame["text"] for frame in after if frame["type"] == "text.delta"]
    seen = {frame["call"] for frame in [*gap["snapshot"]["frames"], *after] if frame["type"] == "completion"}
    assert len(seen) == STEPS + 1
    assert about.calls() == list(range(1, STEPS + 2))


@pytest.mark.full
def test_runs_live_through_a_restart_of_the_database(site: Site, workers: list[Worker]) -> None:
    held = site.model.conversation("held over the restart", steps=STEPS, hold={3})
    last = [site.model.conversation("at its last call", steps=STEPS, hold={STEPS + 1}) for _ in workers]
    flowing = [site.model.conversation("flowing", steps=STEPS) for _ in range(5)]
    site.model.delay = 0.1
    held_id = site.submit(held)
    runs = {held_id: held} | {site.submit_to(worker, about): about for worker, about in zip(workers, last, strict=True)}
    for about in last:
        about.wait_held(STEPS + 1)
    runs |= {site.submit(about): about for about in flowing}
    held.wait_held(3)

    before, begun = site.run(held_id)["lease_expires_at"], time.monotonic()
    site.postgres.restart()
    is_short = time.monotonic() - begun < LEASE_S / 6  # on a slow machine leases may expire meanwhile
    for about in last:  # recorded on one connection and settled on another: both are dead
        about.release()
    site.model.delay = 0.0
    renewed = before + timedelta(seconds=LEASE_S)
    assert wait_until(lambda: site.run(held_id)["lease_expires_at"] > renewed, 2 * LEASE_S + MARGIN_S), "no heartbeat"
    held.release()

    for run_id, about in runs.items():
        site.completed(run_id)
        journal = site.journal(run_id)
        assert [row["seq"] for row in journal] == list(range(1, len(journal) + 1))
        assert about.calls() == list(range(1, STEPS + 2))
        assert not is_short or site.run(run_id)["lease_epoch"] == 1, "a restart is waited out, not taken over"
        assert_numbered(site.wait_streamed(run_id), gaps=0)
    after = site.model.conversation("after the restart", steps=1)
    site.completed(site.submit(after))
