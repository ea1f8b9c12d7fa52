"""A worker whose lease is over can compute; it cannot record."""

import pytest
from django.db import connection, transaction

from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, LeaseLostError
from ravi_django.models import JournalEntry, Run, Status, Turn
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, leased, make_run, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import Entry, NewTurn, append_repeatable

pytestmark = pytest.mark.django_db


def effect(path="1", **fields):
    return Entry("tool.call", path, "t", result={"content": []}, **fields)


def said(run, text="hello"):
    return NewTurn(run.session_id, run.agent, ChatMessage.of("assistant", text))


WRITES = {
    "append": lambda lease: world.append(lease, [effect()], [said(lease.run)]),
    "finish": lambda lease: world.finish(lease, Status.COMPLETED, [effect()], [said(lease.run)], output="wrong"),
    "block": lambda lease: world.journal_block(
        lease, [effect()], [said(lease.run)], error={"type": "X", "message": "x"}
    ),
    "requeue": lambda lease: world.requeue(lease, [effect()], [said(lease.run)], delay_s=5, attempts=3),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("next_worker", ["w2", "w1"])
@pytest.mark.sqlite
def test_zombie_cannot_write_after_another_claim(clock, next_worker, write):
    run = make_run()
    zombie = leased(run, "w1")
    clock.advance(conf.LEASE_S + 1)
    leased(run, next_worker)
    before = Run.objects.filter(id=run.id).values().get()

    with pytest.raises(LeaseLostError):
        WRITES[write](zombie)

    assert Run.objects.filter(id=run.id).values().get() == before
    assert not JournalEntry.objects.exists()
    assert not Turn.objects.exists()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("release", ["finish", "block", "requeue"])
def test_nothing_is_written_after_the_release(write, release):
    run = make_run()
    lease = leased(run)
    released = {"finish": lambda: world.finish(lease, Status.FAILED, []), "requeue": lambda: world.requeue(lease)}
    released.get(release, lambda: world.journal_block(lease, [], error={}))()

    with pytest.raises(LeaseLostError):
        WRITES[write](lease)

    assert not JournalEntry.objects.exists()


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("write", WRITES)
def test_zombie_that_writes_while_another_claims_waits_and_is_refused(clock, write):
    run = make_run()
    zombie = leased(run, "w1")
    clock.advance(conf.LEASE_S + 1)

    with transaction.atomic():
        assert world.claim(run.id, "w2") is not None
        attempt = in_background(WRITES[write], zombie)
        until(somebody_waits_for_a_lock)

    with pytest.raises(LeaseLostError):
        attempt.result(BOUND_S)
    assert not JournalEntry.objects.exists()
    assert not Turn.objects.exists()


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_claim_during_an_append_sees_the_appended_row(clock):
    run = make_run()
    lease = leased(run, "w1")
    clock.advance(conf.LEASE_S + 1)

    with transaction.atomic():
        world.append(lease, [effect()])
        claim = in_background(world.claim, run.id, "w2")
        until(somebody_waits_for_a_lock)

    assert [row.path for row in world.leases_load(claim.result(BOUND_S)).journal] == ["1"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite
def test_an_append_whose_answer_was_lost_is_repeated_without_a_second_row():
    lease = leased()
    entries = [effect("1")]
    append_repeatable(lease, entries, [said(lease.run)])

    seq = append_repeatable(lease, entries, [said(lease.run)])

    assert seq == 1
    assert (JournalEntry.objects.count(), Turn.objects.count()) == (1, 1)
    lease.run.refresh_from_db()
    assert lease.run.next_seq == 2


@on_postgresql
def test_a_statement_that_arrives_behind_its_repeat_writes_nothing():
    lease = leased()
    entries = [effect("1")]
    late = world.append_statement(lease, entries, [])
    append_repeatable(lease, entries, [])

    assert world.fence_execute(late.sql, late.params) == []
    assert JournalEntry.objects.get().seq == 1
    assert world.append(lease, [effect("2")]) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite
def test_seq_has_no_gap_when_four_threads_append_under_one_lease():
    lease = leased()

    def append_many(thread):
        for number in range(20):
            world.append(lease, [effect(f"{thread}.{number}a"), effect(f"{thread}.{number}b")], [said(lease.run)])

    for done in [in_background(append_many, thread) for thread in range(4)]:
        done.result(BOUND_S)

    lease.run.refresh_from_db()
    assert list(JournalEntry.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, 161))
    assert list(Turn.objects.order_by("index").values_list("index", flat=True)) == list(range(80))
    assert list(Turn.objects.order_by("position").values_list("position", flat=True)) == list(range(80))
    assert lease.run.next_seq == 161


def test_a_value_at_the_limit_stays_in_its_row():
    lease = leased()

    world.append(lease, [Entry("log", "1", result="x" * (world.INLINE_BYTES - 2))])  # two quotes

    assert connection.in_atomic_block
    assert JournalEntry.objects.get().result == "x" * (world.INLINE_BYTES - 2)
