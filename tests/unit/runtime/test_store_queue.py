"""One active run for a session and an agent; the others wait their turn."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from ravi_django.models import ACTIVE, TERMINAL, Run, Session, Status, uuid7
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, leased, make_run, on_postgresql, until

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def promoted_orphans(limit):
    return [run_id for orphan in world.queue_orphans(limit) for run_id in world.promote_orphan(orphan)]


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

    _, promoted = world.finish(leased(first), end, [])

    assert promoted == [second.id]
    assert (status_of(second), status_of(third)) == (Status.PENDING, Status.QUEUED)


def test_a_childs_end_promotes_nothing():
    first = make_run()
    waiting = make_run(session=first.session)
    child = make_run(session=first.session, parent=first, root=first)

    _, promoted = world.finish(leased(child), Status.COMPLETED, [])

    assert promoted == []
    assert status_of(waiting) == Status.QUEUED


@pytest.mark.django_db(transaction=True)
def test_of_runs_submitted_at_once_one_is_active_and_each_gets_its_turn():
    session = world.create_session(Session(agent="test/code"))

    runs = [made.result(BOUND_S) for made in [in_background(lambda: make_run(session=session)) for _ in range(6)]]

    assert sorted(run.status for run in runs) == ["pending", *["queued"] * 5]
    for _ in runs:
        lease = world.claim_next("w", ["test/code"])
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


def test_an_orphan_is_promoted_by_the_sweep():
    first = make_run()
    second, third = make_run(session=first.session), make_run(session=first.session)
    Run.objects.filter(id=first.id).update(status=Status.COMPLETED)  # an end that promoted nobody

    promoted = promoted_orphans(10)

    assert promoted == [second.id]
    assert (status_of(second), status_of(third)) == (Status.PENDING, Status.QUEUED)


def test_runs_that_wait_rightly_do_not_keep_an_orphan_from_being_found():
    for _ in range(3):
        make_run(session=make_run().session)
    orphan = make_run(session=(ended := make_run()).session)
    Run.objects.filter(id=ended.id).update(status=Status.COMPLETED)

    assert promoted_orphans(3) == [orphan.id]
