"""A user or a run that is deleted: what runs is cancelled, nothing goes on as the system's, and no row is left."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import register, signal
from ravi_django.kernel import ConflictError, IllegalTransitionError, NotFoundError
from ravi_django.models import TERMINAL, InboxMessage, JournalEntry, Run, Session, Signal, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.cases import case
from tests.support.feeds import followers, inboxes, publish, waiting_runs
from tests.support.patience import BOUND_S
from tests.support.runs import (
    CodeAgent,
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    take_over,
    uncommitted,
    until,
)
from tests.support.world import Entry, fork, retry

pytestmark = pytest.mark.django_db(transaction=True)

REASON = {"type": "Cancelled", "message": "its owner was deleted"}


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
            await ctx.recorder.database.call(ada.delete)
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
    assert not [one for one in queries if "FOR NO KEY UPDATE" in one["sql"] and '"ravi_run"' in one["sql"]]


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
def test_a_run_that_is_deleted_behind_the_look_does_not_keep_its_owner(ada: Any, monkeypatch: Any) -> None:
    deleted, stays = make_run(owner=ada), make_run(owner=ada)
    live = world.owners_live

    def look(user: Any) -> Any:
        runs = live(user)
        in_background(Run.objects.filter(id=deleted.id).delete).result(BOUND_S)
        return runs

    world.patch(monkeypatch, "owners_live", look)
    ada.delete()
    run = Run.objects.get()
    assert (run.id, run.status, run.owner_id) == (stays.id, Status.CANCELLED, None)


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


def failed(**fields: Any) -> Run:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.log("begun")
        raise ValueError("no")

    code(story)
    return drive(make_run(**fields))


def test_neither_retried_nor_forked(ada: Any) -> None:
    run = failed(owner=ada)
    others = [failed(owner=ada) for _ in TERMINAL]
    for status, other in zip(TERMINAL, others, strict=True):
        Run.objects.filter(id=other.id).update(status=status)
    cancelling, waiting = failed(owner=ada), failed(owner=ada)
    Run.objects.filter(id=waiting.id).update(status=Status.SUSPENDED)
    asked = {"cancel_reason": "enough", "cancel_requested_at": run.created_at}
    Run.objects.filter(id=cancelling.id).update(status=Status.RUNNING, **asked)
    ada.delete()
    Run.objects.filter(id=cancelling.id).update(status=Status.CANCELLED)
    with pytest.raises(IllegalTransitionError, match=f"the owner of run {run.id} was deleted") as refused:
        retry(run.id, send=print)
    assert "submit its input as another user" in str(refused.value)
    before = Run.objects.count()
    for one in (run, *others, cancelling, waiting):
        with case(one.status), pytest.raises(ConflictError, match=f"the owner of run {one.id} was deleted"):
            fork(one.id, 1, send=print)
    assert Run.objects.count() == before
    run.refresh_from_db()
    assert (run.status, run.error["type"]) == (Status.FAILED, "ValueError")


def test_nor_a_child_whose_parent_ends_behind_the_deletion(ada: Any) -> None:
    """The workers of both are still at it when their user goes; the root's settles first."""
    root = make_run(owner=ada)
    child = make_run(owner=ada, parent=root, root=root, depth=1)
    Run.objects.update(status=Status.RUNNING)
    ada.delete()
    lost = {"lease_owner": "gone", "lease_expires_at": root.created_at - timedelta(days=1)}
    Run.objects.filter(id=root.id).update(**lost)
    lease = leased(root)
    world.finish(lease, Status.CANCELLED, [Entry("run.cancelled", "@cancelled.1")], entangled=True)
    child.refresh_from_db()
    assert (child.owner_id, child.cancel_reason) == (None, world.OWNER_DELETED)
    Run.objects.filter(id=child.id).update(status=Status.CANCELLED)
    with pytest.raises(ConflictError, match="was deleted"):
        fork(child.id, 1, send=print)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.SUSPENDED])
def test_nor_one_that_is_cancelled_once_more(status: Status, ada: Any) -> None:
    run = make_run(owner=ada, status=Status.RUNNING)
    ada.delete()
    Run.objects.update(status=status)
    world.request_cancel(run.id, "enough")
    run.refresh_from_db()
    assert run.cancel_reason == world.OWNER_DELETED
    assert run.error == (None if status == Status.RUNNING else {"type": "Cancelled", "message": world.OWNER_DELETED})


def test_the_systems_own_and_others_runs_are(ada: Any) -> None:
    systems, others = failed(), failed(owner=get_user_model().objects.create_user("bob"))
    failed(owner=ada)
    ada.delete()
    for run in (systems, others):
        assert retry(run.id, send=print).status == Status.PENDING
        assert fork(run.id, 1, send=print).owner_id == run.owner_id


@on_postgresql
def test_each_of_them_is_written_once(ada: Any) -> None:
    for _ in range(7):
        failed(owner=ada)
    with transaction.atomic(), connection.cursor() as cursor:
        ada.delete()
        cursor.execute("SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'ravi_run'")
        (written,) = cursor.fetchone()
    assert written == 7
    assert Run.objects.filter(owner=None, cancel_reason=world.OWNER_DELETED).count() == 7


@on_postgresql
def test_a_retry_that_comes_behind_the_first_look_is_cancelled(ada: Any, monkeypatch: Any) -> None:
    run = failed(owner=ada)
    looks: list[Any] = []
    original = world.owners_live

    def look(user: Any) -> Any:
        found = original(user)
        looks.append(found)
        if len(looks) == 1:
            in_background(world.store_retry, run.id).result(BOUND_S)
        return found

    world.patch(monkeypatch, "owners_live", look)
    ada.delete()
    assert looks[0] == []
    assert Run.objects.get().status == Status.CANCELLED


@on_postgresql
def test_nor_does_one_escape_that_fails_and_is_retried_meanwhile(ada: Any, monkeypatch: Any) -> None:
    made: list[Any] = []
    live, owns_runs = world.owners_live, world.owns_runs

    def make() -> None:
        made.append(make_run(owner=ada).id)
        Run.objects.update(status=Status.FAILED)

    def look(user: Any) -> Any:
        found = live(user)
        if made and Run.objects.get().status == Status.FAILED:
            in_background(world.store_retry, made[0]).result(BOUND_S)
        return found

    def look_for_any(user: Any) -> bool:
        found = owns_runs(user)
        if not made:
            in_background(make).result(BOUND_S)
        return found

    world.patch(monkeypatch, "owners_live", look)
    world.patch(monkeypatch, "owns_runs", look_for_any)
    ada.delete()
    assert Run.objects.get().status == Status.CANCELLED


@on_postgresql
@pytest.mark.parametrize("first", ["retry", "deletion"])
def test_a_retry_beside_the_deletion_is_cancelled_or_refused(first: str, ada: Any) -> None:
    run = failed(owner=ada)
    with transaction.atomic():
        if first == "retry":
            world.store_retry(run.id)
            other = in_background(ada.delete)
        else:
            ada.delete()
            other = in_background(world.store_retry, run.id)
        until(somebody_waits_for_a_lock)
    error = other.exception(60)
    run.refresh_from_db()
    if first == "retry":
        assert (error, run.status, run.owner_id) == (None, Status.CANCELLED, None)
        assert run.cancel_reason == world.OWNER_DELETED
    else:
        assert isinstance(error, IllegalTransitionError)
        assert run.status == Status.FAILED


@on_postgresql
def test_all_are_locked_in_the_order_of_their_ids(ada: Any) -> None:
    """Between runs that are cancelled there are some that have ended: taken later, they could close a circle."""
    ended, live = failed(owner=ada), make_run(owner=ada)
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).get(id=ended.id)
        deleted = in_background(ada.delete)
        until(somebody_waits_for_a_lock)
        assert Run.objects.select_for_update(no_key=True, skip_locked=True).filter(id=live.id).exists()
    deleted.result(BOUND_S)


def delete(run: Run) -> None:
    Session.objects.get(id=run.session_id).delete()


def left(run: Run) -> list[Any]:
    return [model for model in (Signal, InboxMessage, JournalEntry) if model.objects.filter(run_id=run.id).exists()]


def lost_while_uncommitted(run: Run, write: Callable[[], Any]) -> None:
    """Delete a run while somebody's transaction has written for it: all of it goes."""
    with uncommitted(write):
        deleting = in_background(delete, run)
        until(somebody_waits_for_a_lock)
    deleting.result(BOUND_S)
    assert not Run.objects.filter(id=run.id).exists()
    assert left(run) == []


@on_postgresql
def test_a_signal_that_is_not_yet_committed() -> None:
    run = make_run()
    lost_while_uncommitted(run, lambda: signal(run.id, "go", {"of": "theirs"}))


@on_postgresql
def test_a_row_of_the_journal_that_is_not_yet_committed() -> None:
    lease = leased()
    lost_while_uncommitted(Run.objects.get(id=lease.run_id), lambda: world.append(lease, [Entry("log", "note")]))


@on_postgresql
def test_a_delivery_that_is_not_yet_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")
    runs = waiting_runs(followers(2))
    publication = publish("hello")
    lost_while_uncommitted(runs[0], lambda: world.deliver_batch(publication.id, 10))
    assert inboxes() == {runs[1].id: ["hello"]}


@on_postgresql
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
