"""How a run ends: its lease is given back, or somebody asks for its cancellation."""

from __future__ import annotations

import pytest

from ravi_django.kernel import IllegalTransitionError, Usage
from ravi_django.models import JournalEntry, Run, Status
from tests.support import world
from tests.support.runs import leased, make_run
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def test_finish_ends_the_run_and_writes_its_row(clock):
    run = make_run()
    lease = leased(run)
    world.append(lease, [Entry("tool.call", "1", "t")])
    clock.advance(3)

    first, promoted = world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="done")

    run.refresh_from_db()
    assert (first, promoted) == (2, [])
    assert (run.status, run.output, run.finished_at) == (Status.COMPLETED, "done", clock.now)
    assert (run.lease_owner, run.lease_expires_at) == ("", None)
    assert list(JournalEntry.objects.order_by("seq").values_list("kind", flat=True)) == ["tool.call", "run.completed"]


def test_block_sets_the_run_aside_with_its_error():
    run = make_run()

    world.journal_block(leased(run), [Entry("run.blocked", "@blocked.1")], error={"type": "X", "message": "look at it"})

    run.refresh_from_db()
    assert (run.status, run.error["message"], run.finished_at) == (Status.BLOCKED, "look at it", None)
    assert world.claim(run.id, "w") is None


def test_requeue_after_a_transient_error_waits_and_counts_the_attempt(clock):
    run = make_run()

    world.requeue(leased(run), [Entry("run.retried", "@retried.1")], delay_s=7.5, attempts=2)

    run.refresh_from_db()
    assert (run.status, run.attempts) == (Status.PENDING, 2)
    assert (run.wake_at - clock.now).total_seconds() == 7.5


def test_the_sums_of_the_run_grow_with_its_calls():
    lease = leased()
    world.append(lease, [Entry("llm.call", "0", "m", usage=Usage(), cost=0.0)])
    assert Run.objects.get(id=lease.run_id).cost_unknown is False
    usage = Usage(input_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=1)
    call = Entry("llm.call", "1", "m", usage=usage, cost=0.25)
    world.append(lease, [call, Entry("llm.call", "2", "m", usage=usage, cost=None), Entry("log", "3")])

    world.finish(lease, Status.COMPLETED, [Entry("llm.call", "4", "m", usage=usage, cost=0.5)])

    run = Run.objects.get(id=lease.run_id)
    assert (run.input_tokens, run.cached_tokens, run.output_tokens, run.reasoning_tokens) == (30, 12, 9, 3)
    assert (float(run.cost), run.cost_unknown) == (0.75, True)


def test_event_numbers_are_reserved_above_those_that_may_have_been_used():
    run = make_run()

    assert world.reserve_events(run.id, 5).event_mark == 1005
    assert world.reserve_events(run.id, 5).event_mark == 1010


# ------------------------------------------------------------------------------------------- cancellation


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


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_an_ended_run_cannot_be_cancelled(status):
    run = make_run()
    world.finish(leased(run), status, [], output="x")
    before = Run.objects.filter(id=run.id).values().get()

    with pytest.raises(IllegalTransitionError, match=f"run {run.id} is {status} already"):
        world.request_cancel(run.id, "too late")

    assert Run.objects.filter(id=run.id).values().get() == before


def test_a_long_reason_is_cut_for_its_column_and_kept_in_the_error():
    run = make_run()

    world.request_cancel(run.id, "x" * 500)

    run.refresh_from_db()
    assert (len(run.cancel_reason), len(run.error["message"])) == (200, 500)
