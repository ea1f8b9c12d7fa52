"""Spawns, ends, suspensions and cancellations of one tree by many connections at once: no run awaits a free slot."""

import random
import threading

import pytest
from django.db import connections
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ravi_django.kernel import CancellationError, IllegalTransitionError, LeaseLostError, SpawnDeniedError
from ravi_django.kernel.supervision import Priority
from ravi_django.models import TERMINAL, Run, Session, Status
from tests.support import world
from tests.support.patience import seconds
from tests.support.runs import claim_next, on_postgresql
from tests.support.trees import ended, root, spawn, suspended
from tests.support.world import Entry, with_retry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.crash]

LIMIT = 4


def is_at_work(run):
    return run.status in (Status.PENDING, Status.RUNNING) and not run.awaits_slot


class SlotsMachine(RuleBasedStateMachine):
    """One after the other, against what a reader would count by hand."""

    @initialize(limit=st.integers(2, 5))
    def a_tree(self, limit):
        self.limit = limit
        self.root = root(limit)
        self.leases = {}

    def teardown(self):
        Session.objects.all().delete()

    def rows(self):
        return list(Run.objects.filter(root_id=self.root.run_id).order_by("id"))

    def pick(self, data, rows):
        return data.draw(st.sampled_from(rows)) if rows else None

    @rule(data=st.data(), priority=st.sampled_from(list(Priority)))
    def spawn(self, data, priority):
        spawners = [self.root, *(lease for lease in self.leases.values() if self.holds(lease))]
        spawner = data.draw(st.sampled_from(spawners))
        before = {run.id: run for run in self.rows()}
        above, at = set(), spawner.run_id
        while at != self.root.run_id:
            above.add(at)
            at = before[at].parent_id
        working = [run for run in before.values() if is_at_work(run)]
        lower = [
            run for run in working if run.priority < priority and run.id not in above and not run.cancel_requested_at
        ]
        full = len(working) + 1 >= self.limit
        displaced = min(lower, key=lambda run: (run.priority, -run.id.int), default=None)
        try:
            child = spawn(spawner, priority)
        except SpawnDeniedError:
            assert sum(run.status not in TERMINAL for run in before.values()) + 1 >= 10 * self.limit
            return
        awaits = {run.id for run in self.rows() if run.awaits_slot} - {r.id for r in before.values() if r.awaits_slot}
        takes = priority >= Priority.HIGH and displaced is not None
        assert awaits == ({displaced.id if takes else child.id} if full else set())

    def holds(self, lease):
        return Run.objects.filter(
            id=lease.run_id, lease_epoch=lease.epoch, status=Status.RUNNING, cancel_requested_at=None
        ).exists()

    @rule(data=st.data())
    def claim(self, data):
        run = self.pick(data, [run for run in self.rows() if run.status not in TERMINAL])
        if run is None:
            return
        lease = world.claim(run.id, "worker")
        assert (lease is not None) == (run.status == Status.PENDING and not run.awaits_slot)
        if lease is not None:
            self.leases[run.id] = lease

    @rule(data=st.data(), end=st.sampled_from([Status.COMPLETED, Status.FAILED, None, "suspend", "requeue"]))
    def leave(self, data, end):
        lease = self.pick(data, [lease for lease in self.leases.values() if self.holds(lease)])
        if lease is None:
            return
        if end == "suspend":
            suspended(lease)
        elif end == "requeue":
            world.requeue(lease)
        elif end is None:
            world.request_cancel(lease.run_id, "enough")
            ended(lease, Status.CANCELLED)
        else:
            Run.objects.filter(id=lease.run_id).update(read_upto=2**60)
            world.finish(lease, end, [_end(lease)], output="", entangled=True)

    @rule(data=st.data())
    def wake(self, data):
        if (run := self.pick(data, self.rows())) is not None and run.status not in TERMINAL:
            world.touch([run.id])

    @invariant()
    def no_run_awaits_a_free_slot(self):
        if hasattr(self, "root"):
            rows = self.rows()
            working = 1 + sum(is_at_work(run) for run in rows)
            assert working >= self.limit or not [run for run in rows if run.awaits_slot]
            assert not [run for run in rows if run.awaits_slot and run.status not in (Status.PENDING, Status.RUNNING)]

    @invariant()
    def rows_are_numbered_without_a_gap(self):
        if hasattr(self, "root"):
            for run in self.rows():
                seqs = list(run.journal.order_by("seq").values_list("seq", "epoch"))
                assert [seq for seq, _ in seqs] == list(range(1, run.next_seq))
                assert [epoch for _, epoch in seqs] == sorted(epoch for _, epoch in seqs)


def test_slots_against_a_count_by_hand():
    run_state_machine_as_test(
        SlotsMachine,
        settings=settings(
            max_examples=8,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@on_postgresql
def test_of_many_at_once_none_is_left_without_a_free_slot():
    lease = root(LIMIT)
    idle, errors, done = [], [], threading.Event()
    outcomes = {"granted": 0, "queued": 0, "promoted": 0}

    def watch():
        try:
            while not done.is_set():
                rows = Run.objects.filter(root_id=lease.run_id).values_list("status", "awaits_slot")
                rows = [awaits for status, awaits in rows if status in (Status.PENDING, Status.RUNNING)]
                if any(rows) and rows.count(False) + 1 < LIMIT:
                    idle.append(rows)
        finally:
            connections.close_all()

    def work(seed):
        dice = random.Random(seed)
        try:
            for _ in range(40):
                with_retry(_one_step, lease, dice, outcomes)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    watcher = threading.Thread(target=watch, daemon=True)
    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in (watcher, *workers):
        thread.start()
    for thread in workers:
        thread.join(seconds(120))
    done.set()
    watcher.join(seconds(10))
    assert (errors, idle) == ([], [])
    assert outcomes["granted"] + outcomes["queued"] > 20
    assert min(outcomes.values()) > 0


def _end(lease):
    return Entry("log", f"@end.{lease.epoch}")


def _one_step(lease, dice, outcomes):
    mine = claim_next("worker", ["test/child"])
    spawner = mine if mine is not None and mine.run.depth < 3 and dice.random() < 0.5 else lease
    try:
        child = spawn(spawner, dice.choice([Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL]))
        outcomes["queued" if child.awaits_slot else "granted"] += 1
    except (CancellationError, LeaseLostError, SpawnDeniedError):
        pass
    if mine is None:
        return
    try:
        match dice.randrange(4):
            case 0:
                world.requeue(mine)
            case 1:
                world.suspend(mine, [_end(mine)], seen=-1, waits=[], wake_at=None)  # woken meanwhile: pending again
            case 2:
                error = {"type": "Odd", "message": "odd"}
                _, hints = world.finish(mine, Status.FAILED, [_end(mine)], error=error, entangled=True)
                outcomes["promoted"] += len(hints)
            case _:
                world.request_cancel(mine.run_id, "enough")
                world.finish(mine, Status.CANCELLED, [_end(mine)], error={}, entangled=True)
    except (LeaseLostError, IllegalTransitionError):
        pass
