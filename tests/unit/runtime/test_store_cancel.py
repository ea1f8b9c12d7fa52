"""Asking for cancellation, in each state."""

from __future__ import annotations

import pytest

from ravi_django.conf import conf
from ravi_django.kernel import IllegalTransitionError, LeaseLostError
from ravi_django.models import JournalEntry, Run, Status
from tests.support import world
from tests.support.runs import leased, make_run
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


@pytest.mark.parametrize("status", [Status.PENDING, Status.QUEUED, Status.SUSPENDED, Status.BLOCKED])
def test_a_run_that_nobody_leases_is_cancelled_at_once(clock, status):
    run = make_run()
    Run.objects.filter(id=run.id).update(status=status, waiting_on={"kind": "timer"})

    world.request_cancel(run.id, "not needed any more")

    run.refresh_from_db()
    entry = JournalEntry.objects.get()
    error = {"type": "Cancelled", "message": "not needed any more"}
    assert (run.status, run.error, run.finished_at, run.waiting_on) == (Status.CANCELLED, error, clock.now, None)
    assert (entry.seq, entry.kind, entry.error, entry.epoch) == (1, "run.cancelled", error, run.lease_epoch)
    assert (run.next_seq, run.lease_epoch) == (2, 1)


def test_a_leased_run_goes_on_until_its_worker_is_told(clock):
    run = make_run()
    lease = leased(run, "w")

    assert world.request_cancel(run.id, "stop") == []

    run.refresh_from_db()
    assert (run.status, run.cancel_requested_at, run.cancel_reason) == (Status.RUNNING, clock.now, "stop")
    assert world.heartbeat("w", [(run.id, lease.epoch)]) == {run.id: "cancel"}
    assert world.append(lease, [Entry("tool.call", "1", "t")]) == 1


def test_the_next_worker_of_an_expired_lease_is_told(clock):
    run = make_run()
    leased(run)
    world.request_cancel(run.id, "stop")

    clock.advance(conf.LEASE_S + 1)

    assert leased(run).run.cancel_requested_at is not None


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_an_ended_run_cannot_be_cancelled(status):
    run = make_run()
    world.finish(leased(run), status, [], output="x")
    before = Run.objects.filter(id=run.id).values().get()

    with pytest.raises(IllegalTransitionError, match=f"run {run.id} is {status} already"):
        world.request_cancel(run.id, "too late")

    assert Run.objects.filter(id=run.id).values().get() == before


def test_the_worker_that_had_the_run_before_is_fenced(clock):
    run = make_run()
    old = leased(run)
    world.append(old, [Entry("tool.call", "1", "t")])
    world.requeue(old)

    world.request_cancel(run.id, "stop")

    with pytest.raises(LeaseLostError):
        world.append(old, [Entry("tool.call", "2", "t")])
    assert list(JournalEntry.objects.order_by("seq").values_list("seq", "kind")) == [
        (1, "tool.call"),
        (2, "run.cancelled"),
    ]


def test_a_long_reason_is_cut_for_its_column_and_kept_in_the_error():
    run = make_run()

    world.request_cancel(run.id, "x" * 500)

    run.refresh_from_db()
    assert (len(run.cancel_reason), len(run.error["message"])) == (200, 500)
