"""Locks of sessions and runs keep other writers out, and nobody who only refers to them by a foreign key."""

import threading

import pytest
from django.db import OperationalError, connection, transaction

from ravi_django import register, submit
from ravi_django.kernel import ChatMessage
from ravi_django.models import Ask, Run, Session, Status, StickyDecision, Turn, uuid7
from tests.support import world
from tests.support.approvals import call, open_requests, payer, paying, run_of, user
from tests.support.runs import (
    BOUND_S,
    CodeAgent,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    uncommitted,
    until,
)
from tests.support.world import Entry, NewTurn, touching_lock

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def test_an_answer_for_the_session_and_one_in_a_submits_transaction_close_no_circle():
    ann = user("ann", is_staff=True)
    payer(paying([]), [call(5), call(6, "c2")], approvers="owner")
    session = world.create_session(Session(agent="react/payer", owner=ann))
    run = drive(run_of(session=session, owner=ann))
    mine, theirs = open_requests(run)
    submitted, go = threading.Event(), threading.Event()

    def submits_and_answers():
        with transaction.atomic():
            submit("react/payer", "more", session=session, user=ann)
            submitted.set()
            assert go.wait(BOUND_S)
            world.answer(mine, "approve", by=ann)

    first = in_background(submits_and_answers)
    assert submitted.wait(BOUND_S)
    second = in_background(lambda: world.answer(theirs, "approve", sticky=True, by=ann))
    until(lambda: second.done() or somebody_waits_for_a_lock())
    go.set()

    assert [future.exception(BOUND_S) for future in (first, second)] == [None, None]
    assert StickyDecision.objects.filter(session=session, revoked_at=None).count() == 1
    mine.refresh_from_db()
    assert mine.status == "answered"


@pytest.mark.parametrize("agent", ["test/code", "test/other"])
def test_an_open_transaction_that_has_submitted_holds_up_no_live_run_of_the_conversation(agent):
    """The live run records its turns, and ends; the new run begins after the commit."""
    register(CodeAgent(lambda ctx, inbox: None, key=agent.removeprefix("test/")))
    live = make_run()
    lease, session = leased(live), live.session
    turn = NewTurn(session.id, live.agent, ChatMessage.of("assistant", "hi"))

    with uncommitted(lambda: submit(agent, "more", session=session)):
        in_background(world.append, lease, [Entry("tool.call", "1", "t")], [turn]).result(BOUND_S)
        in_background(world.finish, lease, Status.COMPLETED, [], [turn]).result(BOUND_S)

    assert Turn.objects.filter(run=live).count() == 2
    assert Run.objects.exclude(id=live.id).get().status == Status.PENDING
    session.refresh_from_db()
    assert session.agent == agent


def test_a_run_is_queued_behind_one_that_nobody_has_promoted_yet():
    """As where the process that submitted it died right after its commit."""
    register(CodeAgent(lambda ctx, inbox: None))
    waiting = make_run()
    Run.objects.filter(id=waiting.id).update(status=Status.QUEUED)

    later = submit("test/code", "more", session=waiting.session)

    waiting.refresh_from_db()
    assert (waiting.status, later.status) == (Status.PENDING, Status.QUEUED)


def at_once(write):
    """In a transaction of its own, which waits for no lock longer than a moment."""

    def writing():
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '300ms'")
            write()

    return writing


def test_a_row_that_refers_to_a_locked_run_is_written_at_once():
    runs = [make_run().id, make_run().id]

    with transaction.atomic():
        touching_lock(runs)
        in_background(at_once(lambda: Ask.objects.create(asker_id=runs[0], target_id=runs[1]))).result(BOUND_S)

    assert Ask.objects.filter(asker_id=runs[0]).exists()
    failed = make_run()
    world.finish(leased(failed), Status.FAILED, [], error={"type": "X", "message": "x"})
    other = Run(id=uuid7(), agent="test/other", session_id=failed.session_id)
    with transaction.atomic():
        world.store_retry(failed.id)  # it locks the session
        in_background(at_once(lambda: other.save(force_insert=True))).result(BOUND_S)
    assert Run.objects.filter(session_id=failed.session_id).count() == 2


def test_a_locked_run_is_written_by_nobody_else():
    runs = [make_run().id, make_run().id]

    with transaction.atomic():
        touching_lock(runs)
        with pytest.raises(OperationalError):
            in_background(at_once(lambda: Run.objects.filter(id=runs[1]).update(hints=7))).result(BOUND_S)
