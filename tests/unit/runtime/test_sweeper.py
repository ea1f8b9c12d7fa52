"""The sweep finds what no hint has reached; one at a time, and one bad row does not stop the rest."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from ravi_django.conf import conf
from ravi_django.models import Run, Status, SweepState, WorkerProcess
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, leased, make_run, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite
def test_it_hints_lost_runs_dead_leases_and_orphans(clock):
    dead = make_run()
    leased(dead)
    clock.advance(conf.LEASE_S + 1)
    pending = make_run()
    ended = make_run()
    orphan = make_run(session=ended.session)
    Run.objects.filter(id=ended.id).update(status=Status.COMPLETED)
    hinted = []

    def send(run_ids):
        assert not connection.in_atomic_block  # after the commit, outside of the lock
        hinted.extend(run_ids)

    swept = world.sweeper_sweep(send)

    assert hinted == [dead.id, pending.id, orphan.id]
    assert (swept.ran, swept.hinted, swept.promoted) == (True, 3, 1)
    assert Run.objects.get(id=dead.id).hints == 1
    assert SweepState.objects.get().ran_at == clock.now


def test_hints_that_did_not_go_out_are_tried_again_by_the_next(clock):
    runs = [make_run() for _ in range(3)]
    world.sweeper_sweep(lambda run_ids: run_ids[1:])
    again = []

    world.sweeper_sweep(again.extend)

    assert again == [run.id for run in runs[1:]]


def test_a_broker_that_fails_is_asked_no_more_in_this_sweep(clock, monkeypatch):
    asked = []

    def fail(run_id):
        asked.append(run_id)
        raise ConnectionError("away")

    world.patch(monkeypatch, "dispatch_send", fail)
    runs = [make_run() for _ in range(3)]

    swept = world.sweeper_sweep()

    assert (asked, swept.hinted) == ([runs[0].id], 0)
    assert SweepState.objects.exists()


@on_postgresql
def test_only_one_sweeps_at_a_time(clock):
    make_run()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [world.SWEEPER_LOCK])

        other = in_background(world.sweeper_sweep, lambda run_ids: None).result(BOUND_S)

    assert other.ran is False
    assert Run.objects.get().hints == 0
    assert world.sweeper_sweep(lambda run_ids: None).hinted == 1


def test_a_stream_that_cannot_be_published_does_not_stop_the_others(clock, monkeypatch):
    ended = [make_run() for _ in range(3)]
    for run in ended:
        world.finish(leased(run), Status.COMPLETED, [])
    clock.advance(60)
    republish = world.republish

    def faulty(tree):
        if tree == str(ended[0].id):
            raise ConnectionError("away")
        republish(tree)

    world.patch(monkeypatch, "republish", faulty)

    swept = world.sweeper_sweep(lambda run_ids: None)

    assert swept.published == 2
    assert Run.objects.get(published_at=None).id == ended[0].id


@pytest.mark.sqlite
def test_it_forgets_workers_that_are_long_gone(clock):
    world.worker_seen("gone", 3)
    clock.advance(10 * conf.HEARTBEAT_S + 61)
    world.worker_seen("here", 3)

    world.sweeper_sweep(lambda run_ids: None)

    assert list(WorkerProcess.objects.values_list("name", flat=True)) == ["here"]


def test_a_row_that_cannot_be_mended_does_not_stop_the_others(clock, monkeypatch):
    runs = [make_run() for _ in range(3)]
    for run in runs:
        Run.objects.filter(id=run.id).update(status=Status.SUSPENDED)
        with transaction.atomic():
            world.send_signal(run.id, "go", 1)
    wake = world.wake_silent

    def faulty(run_id):
        if run_id == runs[1].id:
            raise ValueError("a bad row")
        return wake(run_id)

    world.patch(monkeypatch, "wake_silent", faulty)
    clock.advance(conf.SWEEP_S + 1)
    hinted = []

    world.sweeper_sweep(hinted.extend)

    assert sorted(hinted) == sorted([runs[0].id, runs[2].id])
    assert Run.objects.get(status=Status.SUSPENDED).id == runs[1].id
    assert SweepState.objects.exists()


def test_a_sweep_takes_no_more_than_its_batch(clock, monkeypatch):
    world.patch(monkeypatch, "SWEEPER_BATCH", 2)
    for _ in range(5):
        make_run()
    sizes = []

    for _ in range(3):
        world.sweeper_sweep(lambda run_ids: sizes.append(len(run_ids)))

    assert sizes == [2, 2, 1]
