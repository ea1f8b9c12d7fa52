"""How a run ends, or is cancelled, and which run of its session is next."""

import pytest
from django.db import IntegrityError, transaction

from ravi_django.kernel import IllegalTransitionError, Usage
from ravi_django.models import ACTIVE, TERMINAL, JournalEntry, Run, Session, Status, uuid7
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    claim_next,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
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


@pytest.mark.parametrize("status", [Status.PENDING, Status.QUEUED, Status.SUSPENDED, Status.BLOCKED])
def test_a_run_that_nobody_leases_is_cancelled_at_once(clock, status):
    """A long reason is cut for its column and kept in the error."""
    run = make_run()
    Run.objects.filter(id=run.id).update(status=status, waiting_on={"kind": "timer"})

    world.request_cancel(run.id, "x" * 500)

    run.refresh_from_db()
    entry = JournalEntry.objects.get()
    error = {"type": "Cancelled", "message": "x" * 500}
    assert (run.status, run.error, run.finished_at, run.waiting_on) == (Status.CANCELLED, error, clock.now, None)
    assert (entry.seq, entry.kind, entry.error, entry.epoch) == (1, "run.cancelled", error, run.lease_epoch)
    assert (run.next_seq, run.lease_epoch, run.cancel_reason) == (2, 1, "x" * 200)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_an_ended_run_cannot_be_cancelled(status):
    run = make_run()
    world.finish(leased(run), status, [], output="x")
    before = Run.objects.filter(id=run.id).values().get()

    with pytest.raises(IllegalTransitionError, match=f"run {run.id} is {status} already"):
        world.request_cancel(run.id, "too late")

    assert Run.objects.filter(id=run.id).values().get() == before


def status_of(run):
    return Run.objects.values_list("status", flat=True).get(id=run.id)


def test_a_second_run_of_the_session_is_queued():
    first = make_run()

    second, other = make_run(session=first.session), make_run("test/other", session=first.session)

    assert (first.status, second.status, other.status) == (Status.PENDING, Status.QUEUED, Status.PENDING)
    assert world.claim(second.id, "w") is None


@pytest.mark.parametrize("end", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_the_end_of_a_run_promotes_the_oldest_that_waits(end):
    first = make_run()
    second, third = make_run(session=first.session), make_run(session=first.session)
    child = make_run(session=first.session, parent=first, root=first)
    _, promoted = world.finish(leased(child), end, [])
    assert (promoted, status_of(second)) == ([], Status.QUEUED), "a child's end promotes nothing"

    _, promoted = world.finish(leased(first), end, [])

    assert promoted == [second.id]
    assert (status_of(second), status_of(third)) == (Status.PENDING, Status.QUEUED)


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_of_runs_submitted_at_once_one_is_active_and_each_gets_its_turn():
    session = world.create_session(Session(agent="test/code"))

    with transaction.atomic():
        first = make_run(session=session)
        others = [in_background(lambda: make_run(session=session)) for _ in range(5)]
        until(somebody_waits_for_a_lock)
    runs = [first, *(made.result(BOUND_S) for made in others)]

    assert sorted(run.status for run in runs) == ["pending", *["queued"] * 5]
    for _ in runs:
        lease = claim_next("w", ["test/code"])
        world.finish(lease, Status.COMPLETED, [])
    assert {status_of(run) for run in runs} == {Status.COMPLETED}


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_run_submitted_while_the_active_one_ends_is_not_stranded():
    """Whoever comes first: the end sees the queued run, or the new run sees the end."""
    for _ in range(10):
        first = make_run()
        lease = leased(first)

        ending = in_background(world.finish, lease, Status.COMPLETED, [])
        second = in_background(lambda run=first: make_run(session=run.session)).result(BOUND_S)
        ending.result(BOUND_S)

        until(lambda run=second: status_of(run) == Status.PENDING)


def test_the_database_refuses_a_second_active_root_and_an_unknown_status():
    first = make_run()

    def beside(**fields):
        with transaction.atomic():
            Run(id=uuid7(), agent=first.agent, session=first.session, **fields).save(force_insert=True)

    for status in (*ACTIVE, "sleeping"):
        with pytest.raises(IntegrityError):
            beside(status=status)
    for status in (*TERMINAL, Status.QUEUED):
        beside(status=status)
    beside(parent=first, root=first)


def test_an_orphan_is_promoted_by_the_sweep_behind_whatever_waits_rightly():
    for _ in range(3):
        make_run(session=make_run().session)
    first = make_run()
    second, third = make_run(session=first.session), make_run(session=first.session)
    Run.objects.filter(id=first.id).update(status=Status.COMPLETED)  # an end that promoted nobody

    promoted = [run_id for orphan in world.queue_orphans(3) for run_id in world.promote_orphan(orphan)]

    assert promoted == [second.id]
    assert (status_of(second), status_of(third)) == (Status.PENDING, Status.QUEUED)
