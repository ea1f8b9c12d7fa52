"""The sweep finds what no hint has reached; one at a time, and one bad row does not stop the rest."""

import zlib
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from ravi_django.conf import conf
from ravi_django.models import Run, Status, StreamArchive, SweepState, WorkerProcess
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, leased, make_run, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.sqlite
def test_it_hints_lost_runs_dead_leases_and_orphans(clock):
    dead = make_run()
    leased(dead)
    clock.advance(conf.LEASE_S + 1)
    alive = make_run()
    leased(alive)
    world.requeue(leased(make_run()), delay_s=100)
    world.finish(leased(make_run()), Status.COMPLETED, [])
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


def test_a_broker_that_fails_is_asked_no_more_in_this_sweep_and_the_next_tries_again(clock, monkeypatch):
    asked, again = [], []

    def fail(run_id):
        asked.append(run_id)
        raise ConnectionError("away")

    world.patch(monkeypatch, "dispatch_send", fail)
    runs = [make_run() for _ in range(3)]

    swept = world.sweeper_sweep()

    assert (asked, swept.hinted) == ([runs[0].id], 0)
    assert SweepState.objects.exists()
    world.sweeper_sweep(lambda run_ids: run_ids[1:])
    world.sweeper_sweep(again.extend)
    assert again == [run.id for run in runs[1:]]


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
    Run.objects.all().delete()
    stuck = [make_run("test/unknown", priority=8) for _ in range(3)]
    run = make_run()
    assert world.due_for_hint(3) == [one.id for one in stuck]
    clock.advance(1)
    assert world.due_for_hint(3) == [run.id], "runs that nobody can take do not fill every batch"


@pytest.mark.sqlite
def test_without_a_fake_clock_the_present_of_schedules_is_now():
    assert abs(world.schedules_present() - timezone.now()) < timedelta(minutes=5)


@pytest.mark.sqlite
def test_hints_back_off_up_to_five_minutes(clock):
    run = make_run()
    pauses = []
    for _ in range(10):
        assert world.due_for_hint(10) == [run.id]
        assert world.due_for_hint(10) == []
        run.refresh_from_db()
        pauses.append((run.hint_after - clock.now).total_seconds())
        clock.advance(pauses[-1])

    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert world.due_for_hint(10) == [run.id]
    world.requeue(leased(run))
    assert world.due_for_hint(10) == [run.id], "a claim forgets the hints"


@pytest.mark.sqlite
def test_unpublished_finds_ended_roots_after_a_while(clock):
    ended, child, published = make_run(), make_run(parent=make_run()), make_run()
    for run in (ended, child, published):
        world.finish(leased(run), Status.COMPLETED, [])
    world.mark_many_published({str(published.id): (archive("a"), 1)})

    assert world.unpublished(10, older_than_s=10) == []
    clock.advance(10.1)
    assert world.unpublished(10, older_than_s=10) == [ended.id]


@pytest.mark.sqlite
def test_a_worker_is_seen_and_forgotten(clock):
    world.worker_seen("w1", 3)
    world.worker_seen("w2", 0)
    started = clock.now
    clock.advance(60)
    world.worker_seen("w1", 5)

    worker = WorkerProcess.objects.get(name="w1")
    assert (worker.runs, worker.started_at, worker.seen_at) == (5, started, clock.now)
    clock.advance(10 * conf.HEARTBEAT_S + 1)
    world.worker_seen("w1", 5)
    world.sweeper_sweep(lambda run_ids: None)
    assert list(WorkerProcess.objects.values_list("name", flat=True)) == ["w1"]
    world.worker_gone("w1")
    assert not WorkerProcess.objects.exists()


def archive(text):
    return zlib.compress(text.encode())


@pytest.mark.sqlite
def test_published_trees_are_marked_with_their_archives(clock):
    ended, also, third = runs = [make_run() for _ in range(3)]
    for run in runs:
        world.finish(leased(run), Status.COMPLETED, [])
    live, lost = leased().run, make_run()
    world.finish(leased(lost), Status.FAILED, [])
    archives = {str(run.id): (archive(text), 1) for run, text in zip(runs, "aba", strict=True)}

    marked = world.mark_many_published({**archives, str(live.id): (archive("c"), 1), str(lost.id): (archive("d"), 0)})

    assert sorted(marked) == sorted(archives)
    for run in (ended, also, third):
        run.refresh_from_db()
        archived = StreamArchive.objects.get(tree=run)
        assert (run.published_at, bytes(archived.body)) == (clock.now, archives[str(run.id)][0])
    assert set(Run.objects.filter(id__in=[live.id, lost.id]).values_list("published_at")) == {(None,)}
    assert StreamArchive.objects.count() == 3
