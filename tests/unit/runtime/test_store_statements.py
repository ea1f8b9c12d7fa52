"""How many statements a run costs beside its effects."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import submit
from ravi_django.models import Run, Session, Status, uuid7
from tests.support import world
from tests.support.runs import code, leased, make_run, message, on_postgresql
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db, on_postgresql]


def statements(function, *args, **kwargs):
    with CaptureQueriesContext(connection) as captured:
        function(*args, **kwargs)
    words = [query["sql"].split()[0] for query in captured]
    return [word for word in words if word not in ("SAVEPOINT", "RELEASE")]


def test_a_submit_asks_for_the_agent_and_writes_everything_in_one_statement(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")
    code(world.claim)

    assert statements(submit, "test/code", "hello") == ["SELECT", "WITH"]


def test_a_claim_is_one_statement():
    run = make_run()

    assert statements(world.claim, run.id, "w") == ["WITH"]


def test_an_end_is_the_append_the_sessions_lock_and_the_promotion():
    lease = leased()

    assert statements(world.finish, lease, Status.COMPLETED, [Entry("run.completed", "@end")]) == [
        "WITH",
        "SELECT",
        "UPDATE",
    ]


def test_a_run_that_is_there_already_leaves_the_callers_transaction_usable():
    first = make_run()
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            world.create_run(Run(id=first.id, agent=first.agent), message(), Session(agent=first.agent))

        world.create_run(Run(id=uuid7(), agent=first.agent), message(), Session(agent=first.agent))

    assert (Run.objects.count(), Session.objects.count()) == (2, 2)


@pytest.mark.parametrize("vendor", [None, "another"])
def test_what_is_changed_beside_an_append_goes_before_what_an_append_changes_itself(monkeypatch, vendor):
    lease = leased()
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    world.requeue(lease, [Entry("tool.call", "1", "t")], delay_s=5, attempts=3, for_release="r9")

    run = Run.objects.get(id=lease.run_id)
    assert (run.status, run.attempts, run.release, run.for_release, run.lease_owner) == ("pending", 3, "r9", "r9", "")
    assert run.wake_at is not None


@pytest.mark.parametrize("vendor", [None, "another"])
def test_an_end_that_was_woken_in_between_sees_what_woke_it(monkeypatch, vendor):
    lease = leased()
    world.touch([lease.run_id])
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    first, _ = world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@end")], output="x", inbox_upto=10**9)

    run = Run.objects.get(id=lease.run_id)
    assert (first, run.status, run.output, run.next_seq) == (1, Status.COMPLETED, "x", 2)
