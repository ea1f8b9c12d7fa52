"""What the sweep reads and writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from ravi_django.conf import conf
from ravi_django.models import Run, Status, WorkerProcess
from tests.support import world
from tests.support.runs import leased, make_run
from tests.support.world import make_blob

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def test_pending_runs_and_expired_leases_are_due_and_nothing_else(clock):
    dead = make_run()
    leased(dead)
    clock.advance(conf.LEASE_S + 1)
    alive = make_run()
    leased(alive)
    pending = make_run()
    world.requeue(leased(make_run()), delay_s=100)
    make_run(session=pending.session)  # queued
    world.finish(leased(make_run()), Status.COMPLETED, [])

    assert world.due_for_hint(10) == [dead.id, pending.id]


def test_without_a_fake_clock_the_present_of_schedules_is_now():
    assert abs(world.schedules_present() - timezone.now()) < timedelta(minutes=5)


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


def test_a_claim_forgets_the_hints(clock):
    run = make_run()
    world.due_for_hint(10)

    world.requeue(leased(run))

    assert world.due_for_hint(10) == [run.id]


def test_runs_that_nobody_can_take_do_not_fill_every_batch(clock):
    stuck = [make_run("test/unknown", priority=8) for _ in range(3)]
    run = make_run()

    assert world.due_for_hint(3) == [one.id for one in stuck]
    clock.advance(1)

    assert world.due_for_hint(3) == [run.id]


def test_unpublished_finds_ended_roots_after_a_while(clock):
    ended, child, published = make_run(), make_run(parent=make_run()), make_run()
    for run in (ended, child, published):
        world.finish(leased(run), Status.COMPLETED, [])
    world.mark_published(published.id, None, epoch=1)

    assert world.unpublished(10, older_than_s=10) == []
    clock.advance(10.1)
    assert world.unpublished(10, older_than_s=10) == [ended.id]


def test_a_worker_is_seen_and_forgotten(clock):
    world.worker_seen("w1", 3)
    world.worker_seen("w2", 0)
    started = clock.now
    clock.advance(60)
    world.worker_seen("w1", 5)

    worker = WorkerProcess.objects.get(name="w1")
    assert (worker.runs, worker.started_at, worker.seen_at) == (5, started, clock.now)
    world.forget_dead_workers(older_than_s=30)
    assert list(WorkerProcess.objects.values_list("name", flat=True)) == ["w1"]
    world.worker_gone("w1")
    assert not WorkerProcess.objects.exists()


def archive(text):
    return make_blob(text.encode(), compress=True)


@pytest.mark.parametrize("blobs", [["a", "b", "a"], [None, None, None]], ids=["archives", "a table is the archive"])
def test_published_trees_are_marked_with_their_archives(clock, blobs):
    ended, also, third = runs = [make_run() for _ in range(3)]
    for run in runs:
        world.finish(leased(run), Status.COMPLETED, [])
    live, lost = leased().run, make_run()
    world.finish(leased(lost), Status.FAILED, [])
    archives = {str(run.id): (text and archive(text), 1) for run, text in zip(runs, blobs, strict=True)}

    marked = world.mark_many_published({**archives, str(live.id): (archive("c"), 1), str(lost.id): (archive("d"), 0)})

    assert sorted(marked) == sorted(archives)
    for run in (ended, also, third):
        run.refresh_from_db()
        blob = archives[str(run.id)][0]
        assert (run.published_at, run.archive_id) == (clock.now, blob and blob.id)
        assert blob is None or (bytes(run.archive.body), run.archive.size) == (blob.body, 1)
    assert set(Run.objects.filter(id__in=[live.id, lost.id]).values_list("published_at", "archive")) == {(None, None)}
