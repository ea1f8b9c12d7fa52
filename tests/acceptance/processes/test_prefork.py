"""A worker whose pool is made of forked processes."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.support.site_process import Site, Worker


@pytest.fixture
def prefork(site: Site) -> Iterator[Worker]:
    worker = site.start_worker("-P", "prefork", "-c", "2")
    worker.wait_for(" ready.", 30)
    yield worker
    worker.child.stop()
    site.workers.remove(worker)


def test_prefork_children_drive_runs_and_their_parent_stays_bare(site: Site, prefork: Worker) -> None:
    parent = psutil.Process(prefork.pid)
    abouts = [site.model.conversation("forked", steps=3, hold={2}) for _ in range(2)]

    runs = [site.submit_to(prefork, about) for about in abouts]
    for about in abouts:
        about.wait_held(2)  # both at once: one a child
    owners = {int(site.owner(run_id).split(":")[-2]) for run_id in runs}
    database = [peer for peer in parent.net_connections() if peer.raddr and peer.raddr.port == site.postgres.port]
    threads = parent.num_threads()
    for about in abouts:
        about.release()

    for run_id, about in zip(runs, abouts, strict=True):
        site.completed(run_id)
        assert about.calls() == [1, 2, 3, 4]
    assert owners == {child.pid for child in parent.children()}
    assert database == []
    assert threads == 1
