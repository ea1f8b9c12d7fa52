"""A user who is deleted: what runs for them is cancelled, and nothing goes on as the system's."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.models import TERMINAL, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    take_over,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)

REASON = {"type": "Cancelled", "message": "its owner was deleted"}


@pytest.fixture
def ada() -> Any:
    return get_user_model().objects.create_user("ada")


@pytest.mark.parametrize("status", [status for status in Status if status not in (*TERMINAL, Status.RUNNING)])
def test_whatever_has_not_ended_is_cancelled(status: Status, ada: Any) -> None:
    run, other = make_run(owner=ada), make_run()
    Run.objects.filter(id=run.id).update(status=status)
    ended = make_run(owner=ada, status=Status.COMPLETED)
    ada.delete()
    for one in (run, other, ended):
        one.refresh_from_db()
    assert (run.status, run.error, run.owner_id) == (Status.CANCELLED, REASON, None)
    assert (other.status, ended.status) == (Status.PENDING, Status.COMPLETED)


def test_one_that_is_at_work_is_told_and_what_takes_over_ends_it(ada: Any, clock: FakeClock) -> None:
    went_on = []

    async def story(ctx: Any, inbox: Any) -> None:
        if not went_on:
            await ctx.effects.database.call(ada.delete)
        went_on.append(ctx.user_id)
        await ctx.log("a")
        await ctx.sleep_until_signal("never")

    code(story)
    run = drive(make_run(owner=ada), dies=1)
    assert run.cancel_reason == REASON["message"]
    take_over(clock, run)
    assert (run.status, run.error) == (Status.CANCELLED, REASON)
    assert went_on == [str(run.owner_id or went_on[0])]


@pytest.mark.sqlite
def test_trees_of_several_users_end_from_their_roots_unless_the_deleter_undoes_it(ada: Any) -> None:
    bob, eve = (get_user_model().objects.create_user(name) for name in ("bob", "eve"))
    root, other = make_run(owner=ada), make_run(owner=bob)
    below = [make_run(owner=ada, parent=root, root=root) for _ in range(2)]
    queued = make_run(owner=ada, status=Status.QUEUED, session=root.session)
    kept = make_run(owner=eve)
    users = get_user_model().objects.filter(pk__in=[ada.pk, bob.pk])
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        users.delete()
        raise ZeroDivisionError
    root.refresh_from_db()
    assert (root.status, root.owner_id, root.cancel_requested_at) == (Status.PENDING, ada.pk, None)
    users.delete()
    for run in (root, other, *below, queued):
        run.refresh_from_db()
        assert run.status == Status.CANCELLED
        assert run in below or run.error == REASON
    assert list(Run.objects.exclude(status__in=TERMINAL)) == [kept]


def test_who_has_no_run_costs_two_looks(ada: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        ada.delete()
    looks = ('SELECT "ravi_run"."id"', 'SELECT 1 AS "a" FROM "ravi_run"')
    assert sum(one["sql"].startswith(looks) for one in queries) == 2
    assert not [one for one in queries if "FOR NO KEY UPDATE" in one["sql"]]


@on_postgresql
def test_a_run_that_is_made_behind_the_first_look_is_cancelled_too(ada: Any, monkeypatch: Any) -> None:
    looks: list[bool] = []
    original = world.owns_runs

    def look(user: Any) -> bool:
        looks.append(original(user))
        if len(looks) == 1:
            in_background(lambda: make_run(owner=ada)).result(BOUND_S)
        return looks[-1]

    world.patch(monkeypatch, "owns_runs", look)
    ada.delete()
    assert not looks[0]
    assert Run.objects.get().status == Status.CANCELLED


@on_postgresql
def test_a_run_that_is_made_behind_the_last_look_is_never_there(ada: Any) -> None:
    key = ada.pk
    with transaction.atomic():
        ada.delete()
        making = in_background(lambda: make_run(owner_id=key))
        until(somebody_waits_for_a_lock)
    with pytest.raises(IntegrityError):
        making.result(BOUND_S)
    assert not Run.objects.exists()
