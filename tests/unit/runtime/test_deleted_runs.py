"""What is written for a run that is deleted at that moment goes with it: the database does not look."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from ravi_django import register, signal
from ravi_django.kernel import NotFoundError
from ravi_django.models import InboxMessage, JournalEntry, Run, Session, Signal
from tests.support import world
from tests.support.feeds import followers, inboxes, publish, waiting_runs
from tests.support.runs import (
    BOUND_S,
    CodeAgent,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    uncommitted,
    until,
)
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def delete(run: Run) -> None:
    Session.objects.get(id=run.session_id).delete()


def left(run: Run) -> list[Any]:
    return [model for model in (Signal, InboxMessage, JournalEntry) if model.objects.filter(run_id=run.id).exists()]


def test_a_signal_that_is_not_yet_committed() -> None:
    run = make_run()
    with uncommitted(lambda: signal(run.id, "go", {"of": "theirs"})):
        deleting = in_background(delete, run)
        until(somebody_waits_for_a_lock)
    deleting.result(BOUND_S)
    assert not Run.objects.filter(id=run.id).exists()
    assert left(run) == []


def test_a_row_of_the_journal_that_is_not_yet_committed() -> None:
    lease = leased()
    run = Run.objects.get(id=lease.run_id)
    with uncommitted(lambda: world.append(lease, [Entry("log", "note")])):
        deleting = in_background(delete, run)
        until(somebody_waits_for_a_lock)
    deleting.result(BOUND_S)
    assert left(run) == []


def test_a_delivery_that_is_not_yet_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")
    runs = waiting_runs(followers(2))
    publication = publish("hello")
    with uncommitted(lambda: world.deliver_batch(publication.id, 10)):
        deleting = in_background(delete, runs[0])
        until(somebody_waits_for_a_lock)
    deleting.result(BOUND_S)
    assert left(runs[0]) == []
    assert inboxes() == {runs[1].id: ["hello"]}


@pytest.mark.parametrize("inside", [False, True])
def test_a_signal_to_a_run_whose_deletion_is_not_yet_committed(inside: bool) -> None:
    run = make_run()

    def send() -> None:
        if inside:
            with transaction.atomic():
                world.send_signal(run.id, "go", 1)
        else:
            world.send_signal(run.id, "go", 1)

    with uncommitted(lambda: delete(run)):
        sending = in_background(send)
        until(somebody_waits_for_a_lock)
    with pytest.raises(NotFoundError):
        sending.result(BOUND_S)
    assert left(run) == []
