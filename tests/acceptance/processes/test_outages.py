"""The broker under the site goes away, or comes back empty."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from project.process import wait_until
from tests.support.patience import seconds
from tests.support.site_process import Site, Worker

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
    site.valkey.stop()
    try:
        worker.wait_for("Connection to broker lost")
        run_id = site.submit(about)
        site.completed(run_id)  # a worker looks for runs itself: no hint arrives
        for other in site.workers:  # after 2 s, after 4 s: Celery itself will not be back for a while
            other.wait_for("Trying again in 4.00 seconds")
    finally:
        site.valkey.start()

    assert about.calls() == [1, 2]
    assert_numbered(site.wait_streamed(run_id), gaps=0)
    for other in site.workers:
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
