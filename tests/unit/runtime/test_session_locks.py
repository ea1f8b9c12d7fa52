"""Locks of sessions: who only refers to one, by a foreign key, does not wait for who adds a run to it."""

from __future__ import annotations

import threading

import pytest
from django.db import transaction

from ravi_django import submit
from ravi_django.models import Session, StickyDecision
from ravi_django.runtime import human, store
from tests.support.approvals import call, open_requests, payer, paying, run_of, user
from tests.support.runs import BOUND_S, drive, in_background, on_postgresql, somebody_waits_for_a_lock, until

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def test_an_answer_for_the_session_and_one_in_a_submits_transaction_close_no_circle():
    ann = user("ann", is_staff=True)
    payer(paying([]), [call(5), call(6, "c2")])
    session = store.create_session(Session(agent="react/payer", owner=ann))
    run = drive(run_of(session=session, owner=ann))
    mine, theirs = open_requests(run)
    submitted, go = threading.Event(), threading.Event()

    def submits_and_answers():
        with transaction.atomic():
            submit("react/payer", "more", session=session, user=ann)
            submitted.set()
            assert go.wait(BOUND_S)
            human.answer(mine, "approve", by=ann)

    first = in_background(submits_and_answers)
    assert submitted.wait(BOUND_S)
    second = in_background(lambda: human.answer(theirs, "approve", sticky=True, by=ann))
    until(lambda: second.done() or somebody_waits_for_a_lock())
    go.set()

    assert [future.exception(BOUND_S) for future in (first, second)] == [None, None]
    assert StickyDecision.objects.filter(session=session, revoked_at=None).count() == 1
    mine.refresh_from_db()
    assert mine.status == "answered"
