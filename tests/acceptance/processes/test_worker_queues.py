"""The app's own Celery queue, beside the queues of a site: which workers run agents, and what the others notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psutil
import pytest

from tests.support.site_process import MARGIN_S, Site, Worker

pytestmark = pytest.mark.full


@contextmanager
def worker_with(site: Site, *options: str) -> Iterator[Worker]:
    worker = site.start_worker(*options)
    try:
        worker.wait_for(" ready.")
        yield worker
    finally:
        worker.child.stop()
        site.workers.remove(worker)


def deliver(site: Site, worker: Worker, name: str, *args: str, queue: str) -> None:
    """Put a task into a queue of the worker, and wait until it is done."""
    task_id = str(uuid4())
    site.client.ask("send_task", name=name, args=args, queue=queue, task_id=task_id)
    worker.wait_for(f"Task {name}[{task_id}] succeeded")


def engines_of(site: Site, worker: Worker) -> list[str]:
    family = {worker.pid, *(child.pid for child in psutil.Process(worker.pid).children())}
    names = [row["name"] for row in site.query("SELECT name FROM ravi_workerprocess")]
    return [name for name in names if int(name.split(":")[-2]) in family]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_of_the_sites_own_queues_starts_no_engine(site: Site, worker: Worker, pool: str) -> None:
    with worker_with(site, "-P", pool, "-c", "2", "-Q", "emails") as other:
        deliver(site, other, "celery.accumulate", queue="emails")

        assert engines_of(site, other) == []
        assert ": ERROR/" not in other.text
    assert "draining" not in other.text


def test_a_prefork_worker_leaves_the_queue_and_keeps_its_others(site: Site, worker: Worker) -> None:
    with worker_with(site, "-P", "prefork", "-c", "2", "-Q", "emails,ravi") as other:
        deliver(site, other, "celery.accumulate", queue="emails")
        for number in range(4):
            site.completed(site.submit(site.model.conversation(f"beside {number}")))

        errors = [line for line in other.text.splitlines() if ": ERROR/" in line]
        assert len(errors) == 1 and "the prefork pool" in errors[0], other.text
        assert "-P threads -c 200 -Q ravi" in errors[0]
        assert "Task ravi." not in other.text, "neither a run nor one of the sweeps of these seconds"
        assert engines_of(site, other) == []
    worker.wait_for("Task ravi.sweep[")
    assert "; queue ravi; agents: " in worker.text and "; lease 3 s; postgresql " in worker.text


def test_a_prefork_worker_of_that_queue_alone_ends_with_the_line_that_works(site: Site) -> None:
    lone = site.start_worker("-P", "prefork", "-c", "1", "-Q", "ravi")
    try:
        assert lone.wait_ended(MARGIN_S) == 1
        assert "the prefork pool cannot run agents" in lone.text and "-P threads -c 200 -Q ravi" in lone.text
        assert " ready." not in lone.text
    finally:
        lone.child.stop()
        site.workers.remove(lone)
