"""Who gets a run, and when."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.conf import conf
from ravi_django.kernel import Priority
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import (
    claim_next,
    in_background,
    leased,
    make_run,
    message,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.world import Entry

pytestmark = pytest.mark.django_db


def test_claim_takes_the_lease(clock):
    run = make_run()

    lease = world.claim(run.id, "w1")

    run.refresh_from_db()
    assert lease is not None
    assert (run.status, run.lease_owner, run.lease_epoch) == (Status.RUNNING, "w1", 1)
    assert (run.lease_expires_at - clock.now).total_seconds() == conf.LEASE_S
    assert run.started_at == clock.now


@pytest.mark.sqlite
def test_a_leased_run_is_not_claimable(clock):
    run = make_run()
    world.claim(run.id, "w1")

    assert world.claim(run.id, "w2") is None
    assert claim_next("w2", [run.agent]) is None


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_one_of_two_that_claim_at_once_gets_the_run():
    run = make_run()

    with transaction.atomic():
        first = world.claim(run.id, "w1")
        second = in_background(world.claim, run.id, "w2")
        until(somebody_waits_for_a_lock)

    run.refresh_from_db()
    assert first is not None
    assert second.result(BOUND_S) is None
    assert (run.lease_owner, run.lease_epoch) == ("w1", 1)


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_workers_that_look_at_once_get_different_runs():
    runs = [make_run() for _ in range(6)]

    looks = [in_background(claim_next, f"w{number}", ["test/code"]) for number in range(6)]
    found = [lease.run_id for look in looks if (lease := look.result(BOUND_S)) is not None]

    assert len(set(found)) == len(found)
    while (lease := claim_next("late", ["test/code"])) is not None:
        found.append(lease.run_id)
    assert sorted(found) == sorted(run.id for run in runs)


@pytest.mark.parametrize(
    "status", [Status.QUEUED, Status.SUSPENDED, Status.BLOCKED, Status.COMPLETED, Status.FAILED, Status.CANCELLED]
)
def test_a_run_that_is_not_pending_is_not_claimable(status):
    run = make_run()
    Run.objects.filter(id=run.id).update(status=status)

    assert world.claim(run.id, "w") is None
    assert claim_next("w", [run.agent]) is None


@pytest.mark.sqlite
def test_a_run_is_not_claimable_before_its_wake_time(clock):
    run = make_run()
    world.requeue(leased(run), delay_s=60)

    clock.advance(59.9)
    assert world.claim(run.id, "w") is None
    assert claim_next("w", [run.agent]) is None
    clock.advance(0.1)
    lease = claim_next("w", [run.agent])

    assert lease is not None
    assert lease.run.wake_at is None


@pytest.mark.sqlite
def test_the_most_urgent_run_comes_first_and_the_oldest_of_equals_until_one_has_waited_long(clock):
    order = [Priority.NORMAL, Priority.BACKGROUND, Priority.CRITICAL, Priority.LOW, Priority.HIGH, Priority.NORMAL]
    runs = [make_run(priority=priority.value) for priority in order]

    taken = [claim_next("w", ["test/code"]).run_id for _ in runs]

    assert taken == [runs[number].id for number in (2, 4, 0, 5, 3, 1)]
    Run.objects.update(status=Status.COMPLETED)
    old, *_ = make_run(priority=Priority.BACKGROUND.value), clock.advance(121)
    new = make_run()
    assert [claim_next("w", ["test/code"]).run_id for _ in range(2)] == [old.id, new.id]


def test_runs_of_agents_that_the_worker_does_not_know_are_left_alone():
    run = make_run("test/other")

    assert claim_next("w", ["test/code"]) is None
    assert claim_next("w", []) is None
    assert world.claim(run.id, "w", ["test/code"]) is None
    assert world.claim(run.id, "w", ["test/code", "test/other"]) is not None


@pytest.mark.sqlite
def test_an_expired_lease_and_a_due_timer_come_before_what_is_ready(clock):
    dead, timer = make_run(priority=Priority.BACKGROUND.value), make_run(priority=Priority.BACKGROUND.value)
    leased(dead)
    world.suspend(leased(timer), [], seen=0, waits=[], wake_at=clock.now)
    clock.advance(conf.LEASE_S + 1)
    ready = make_run(priority=Priority.CRITICAL.value)

    taken = [claim_next("w", ["test/code"]).run_id for _ in range(3)]

    assert taken == [dead.id, timer.id, ready.id]
    assert claim_next("w", ["test/code"]) is None


# ------------------------------------------------------------------------------------------------------- batches


@pytest.mark.sqlite
def test_a_batch_is_in_the_order_of_all_agents_runs_and_no_larger_than_the_room(clock):
    dead, timer = make_run(), make_run()
    leased(dead)
    world.suspend(leased(timer), [], seen=0, waits=[], wake_at=clock.now)
    clock.advance(conf.LEASE_S + 1)
    ready = []
    for agent in ("test/a", "test/b", "test/b", "test/a", "test/none", "test/a"):
        ready.append(make_run(agent))
        clock.advance(1)
    expected = [run.id for run in (dead, timer, *ready) if run.agent != "test/none"]

    batches = [world.claim_batch("w", ["test/code", "test/a", "test/b"], room) for room in (1, 4, 5, 5)]

    assert [[lease.run_id for lease in batch] for batch in batches] == [expected[:1], expected[1:5], expected[5:], []]
    assert all(
        lease.run.lease_owner == "w" and lease.epoch == lease.run.lease_epoch for batch in batches for lease in batch
    )


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_second_batch_at_the_same_time_takes_the_next_runs():
    runs = [make_run(agent).id for _ in range(5) for agent in ("test/a", "test/b")]

    with transaction.atomic():
        first = world.claim_batch("w1", ["test/a", "test/b"], 4)
        second = in_background(world.claim_batch, "w2", ["test/a", "test/b"], 4).result(BOUND_S)

    assert [lease.run_id for lease in first] == runs[:4]
    assert [lease.run_id for lease in second] == runs[4:8]


@pytest.mark.sqlite
@pytest.mark.parametrize("dies_as", [Status.PENDING, Status.RUNNING])
def test_a_batch_has_one_run_whose_workers_died_at_most(clock, dies_as):
    suspects = [make_run() for _ in range(3)]
    crashes = 2 if dies_as == Status.PENDING else 1
    for place, run in enumerate(suspects):
        ended = clock.now - timedelta(seconds=3 - place)
        Run.objects.filter(id=run.id).update(status=dies_as, crashes=crashes, lease_expires_at=ended)
    calm = [make_run().id for _ in range(3)]

    first = [lease.run_id for lease in world.claim_batch("w", ["test/code"], 5)]
    rest = [lease.run_id for lease in world.claim_batch("w", ["test/code"], 5, suspects=False)]

    assert first[0] == suspects[0].id
    assert sorted(first[1:] + rest) == calm


def _woken(run):
    world.suspend(leased(run), [], seen=0, waits=[], wake_at=None)
    world.send_signal(run.id, "go", None)


def _woken_before_it_suspends(run):
    lease = leased(run)
    world.send_signal(run.id, "go", None)
    world.suspend(lease, [], seen=0, waits=[], wake_at=None)


def _promoted(run):
    Run.objects.filter(id=run.id).update(status=Status.QUEUED)
    world.promote_orphan(run)


def _retried(run):
    world.finish(leased(run), Status.FAILED, [], error={"type": "X", "message": "x"})
    world.store_retry(run.id)


def _blocked_though_to_be_cancelled(run):
    lease = leased(run)
    world.request_cancel(run.id, "enough")
    world.journal_block(lease, [], error={})


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("becomes_ready", "after_s"),
    [
        (_woken, 0),
        (_woken_before_it_suspends, 0),
        (_promoted, 0),
        (_retried, 0),
        (_blocked_though_to_be_cancelled, 0),
        (lambda run: world.requeue(leased(run)), 0),
        (lambda run: world.requeue(leased(run), delay_s=45), 45),
        (lambda run: world.continue_as_new(leased(run), [], state=None, read_upto=0), 0),
    ],
)
def test_each_way_of_becoming_ready_gives_the_head_start_of_the_priority(clock, becomes_ready, after_s):
    run = make_run(priority=Priority.HIGH.value)
    assert run.claim_at == clock.now - timedelta(seconds=4 * 60)

    clock.advance(1000)
    becomes_ready(run)

    run.refresh_from_db()
    assert run.status == Status.PENDING
    assert run.claim_at == clock.now + timedelta(seconds=after_s - 4 * 60)


@pytest.mark.sqlite
def test_a_recorded_effect_forgets_crashes_and_attempts(clock):
    run, started = make_run(), clock.now
    leased(run)
    clock.advance(conf.LEASE_S + 1)
    lease = leased(run)
    assert lease.run.started_at == started
    Run.objects.filter(id=run.id).update(attempts=3)

    world.append(lease, [Entry("log", "1")])
    run.refresh_from_db()
    assert (run.crashes, run.attempts) == (1, 3)
    world.append(lease, [Entry("tool.call", "2", "t")])
    run.refresh_from_db()
    assert (run.crashes, run.attempts) == (0, 0)


@pytest.mark.sqlite
def test_a_later_lease_reads_the_journal_in_order_in_one_query(clock, django_assert_num_queries):
    run = make_run()
    lease = leased(run)
    read_by_the_claim = int(connection.vendor == "postgresql")
    with django_assert_num_queries(1 - read_by_the_claim):
        loaded = world.leases_load(lease)
    assert loaded.journal == []
    assert [body["payload"]["message"]["content"][0]["text"] for _, body in loaded.unread.messages] == ["hi"]
    for number in range(1, 6):
        world.append(lease, [Entry("tool.call", str(number), "t", result={"n": number})])
    clock.advance(conf.LEASE_S + 1)
    lease = leased(run)

    with django_assert_num_queries(2 - read_by_the_claim):  # the inbox is the other one
        loaded = world.leases_load(lease)

    assert [(row.seq, row.result) for row in loaded.journal] == [(n, {"n": n}) for n in range(1, 6)]


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_message_that_is_delivered_while_a_claim_waits_for_the_run_is_read():
    run, sender = make_run(), leased()

    with transaction.atomic():
        world.asking_deliver(sender, [Entry("msg.sent", "1", "t")], target_id=run.id, message=message("more"))
        claim = in_background(world.claim, run.id, "w")
        until(somebody_waits_for_a_lock)
    lease = claim.result(BOUND_S)

    said = [body["payload"]["message"]["content"][0]["text"] for _, body in world.leases_load(lease).unread.messages]
    assert (lease.run.wake_seq, said) == (1, ["hi", "more"])


@pytest.mark.sqlite
@pytest.mark.parametrize("limit", [None, 1])
def test_a_run_with_several_messages_gets_those_that_it_may_be_given(limit):
    run, sender = make_run(), leased()
    for text in ("one", "two"):
        world.asking_deliver(sender, [Entry("msg.sent", text, "t")], target_id=run.id, message=message(text))

    unread = world.leases_load(leased(run), limit).unread

    assert (len(unread.messages), unread.more) == ((3, False) if limit is None else (1, True))


def test_heartbeat_of_an_older_epoch_of_the_same_worker_is_lost(clock):
    run = make_run()
    old = leased(run, "w1")
    clock.advance(conf.LEASE_S + 1)
    leased(run, "w1")

    assert world.heartbeat("w1", [(run.id, old.epoch)]) == {run.id: "lost"}


def test_heartbeat_costs_one_select_and_one_update_whatever_it_holds(django_assert_num_queries, clock):
    leases = [leased(make_run(), "w1") for _ in range(7)]

    with django_assert_num_queries(4):  # with the transaction's own two
        world.heartbeat("w1", [(lease.run_id, lease.epoch) for lease in leases])


def test_times_are_the_databases_own():
    run = make_run()
    lease = leased(run)

    with connection.cursor() as cursor:
        cursor.execute("SELECT lease_expires_at - statement_timestamp() FROM ravi_run WHERE id = %s", [run.id])
        left = cursor.fetchone()[0]

    assert 0 < left.total_seconds() <= conf.LEASE_S
    assert lease.run.lease_expires_at is not None


# ----------------------------------------------- a claim is written twice: for PostgreSQL and for the others


STATES = [  # seconds from now
    {"status": status, "wake_at": wake, "awaits_slot": awaits_slot, "for_release": release, "lease_expires_at": expires}
    for status in (Status.PENDING, Status.SUSPENDED, Status.RUNNING, Status.BLOCKED)
    for wake in (None, -1, 0, 1)
    for awaits_slot in (False, True)
    for release in ("", "r2")
    for expires in (None, -1, 0, 1)
]


def all_claimed(agents, suspects=True):
    return [lease.run_id for lease in iter(lambda: claim_next("w", agents, suspects), None)]


@pytest.mark.parametrize(
    ("release", "suspects", "vendor"), [("", True, None), ("r2", False, None), ("r1", True, "another")]
)
def test_what_is_claimed_is_what_the_queries_call_claimable(clock, settings, monkeypatch, release, suspects, vendor):
    settings.RAVI = {**settings.RAVI, "RELEASE": release}
    runs = [make_run() for _ in STATES]
    for place, (run, state) in enumerate(zip(runs, STATES, strict=True)):
        values = {
            name: clock.now + timedelta(seconds=value) if type(value) is int else value for name, value in state.items()
        }
        Run.objects.filter(id=run.id).update(**values, crashes=place % 3)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)
    found = Run.objects.filter(world.claimable()).values_list("id", "crashes", "status")
    expected = {run_id for run_id, crashes, status in found if suspects or crashes + (status == Status.RUNNING) < 2}

    with transaction.atomic():
        one_by_one = {run.id for run in runs if world.claim(run.id, "w", None, suspects) is not None}
        transaction.set_rollback(True)
    together = set(all_claimed(["test/code"], suspects))

    assert one_by_one == together == expected
    assert 0 < len(expected) < len(runs)


@pytest.mark.parametrize("vendor", [None, "another"])
def test_the_lease_holds_the_rows_as_claimed(monkeypatch, clock, vendor):
    metadata = {"a": [1, "é", None]}
    root = make_run(metadata=metadata, budget={"max_turns": 3}, priority=Priority.HIGH.value, tenant="t")
    child = make_run(parent=root, root=root, depth=1)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    for run in (root, child):
        found = world.claim(run.id, "w1").run

        stored = Run.objects.select_related("session", "root", "parent").get(id=run.id)
        for mine, its in ((found, stored), (found.session, stored.session), (found.root, stored.root)):
            assert (mine and model_values(mine)) == (its and model_values(its))
        assert found.parent == stored.parent
    with CaptureQueriesContext(connection) as queries:
        assert (found.session.next_position, found.root.event_mark, found.parent.agent) == (0, 1000, "test/code")
    assert not queries


def model_values(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


@pytest.mark.parametrize("vendor", [None, "another"])
def test_agents_that_are_rows_are_known_to_every_worker(monkeypatch, clock, vendor):
    row, code, dead = make_run("react/row", agent_version=1), make_run("test/other"), make_run("react/dead")
    Run.objects.filter(id=dead.id).update(agent_version=2)
    leased(dead)
    clock.advance(conf.LEASE_S + 1)
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)

    assert world.claim(code.id, "w", []) is None
    assert all_claimed([]) == [dead.id, row.id]

    clock.advance(conf.LEASE_S + 1)
    assert world.claim(row.id, "w", ["test/x"]) is not None
    assert world.claim(code.id, "w", ["test/other"]) is not None
