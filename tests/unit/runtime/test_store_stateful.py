"""The store against a model of it, under any order of what workers, callers and time can do to a few runs.

Workers keep every lease that they ever had and go on writing under it, as a worker does that was stopped and continued.
Races of two connections have tests of their own (`test_store_fence`, `test_store_claim`); here it is one step after
the other.
"""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, IllegalTransitionError, LeaseLostError
from ravi_django.models import ACTIVE, TERMINAL, Run, Session, Signal, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.cases import sizes
from tests.support.runs import claim_next, make_run, message, on_postgresql
from tests.support.store_model import Row, StoreModel, check_row, check_sessions, may_write, read, unchanged
from tests.support.world import Entry, Lease, NewTurn

WORKERS = st.sampled_from(["w1", "w2"])
ENDS = st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.BLOCKED])
KINDS = st.sampled_from([[], ["log"], ["tool.call"], ["log", "tool.call"]])  # of the rows of one write
DELAYS = st.sampled_from([0.0, 5.0])
# Drawn most often is what can be done: a run that is claimable or alive, a lease that stands.
CLAIMABLE = st.runner().flatmap(lambda machine: st.sampled_from([*machine.model.runs, *3 * machine.claimable()]))
RUNS = st.runner().flatmap(lambda machine: st.sampled_from([*machine.model.runs, *3 * machine.live()]))
LEASES = st.runner().flatmap(lambda machine: st.sampled_from([*machine.held[-4:], *2 * machine.standing()]))
SECONDS = st.sampled_from([5.0, conf.LEASE_S + 0.001])

Write = Callable[[list[Entry]], Any]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock().__enter__()
        self.sessions = [world.create_session(Session(agent="test/code")).id for _ in range(2)]
        self.model = StoreModel()
        self.held: list[Lease] = []  # every one ever had
        self.seen: dict[Any, world.WakeState] = {}  # by lease: what its holder knows of its run
        self.read: dict[Any, tuple[int, int]] = {}  # by lease: how many messages, and the last one's id
        self.before: dict[Any, Row] = {}  # after the step before
        self.touched: Any = None  # the run of this step
        self.paths = 0

    def teardown(self) -> None:
        self.clock.__exit__(None, None, None)
        Session.objects.all().delete()

    def claimable(self) -> list[Any]:
        return [run for run, model in self.model.runs.items() if model.claimable(self.clock.now)]

    def live(self) -> list[Any]:
        return [run for run, model in self.model.runs.items() if model.status not in TERMINAL]

    def standing(self) -> list[Lease]:
        return [lease for lease in self.held if self.model[lease.run_id].writable(lease)]

    # ------------------------------------------------------------------------------------------ from outside

    @initialize()
    def two_runs_are_on_their_way(self) -> None:
        for session in (0, 1):
            self.submit(session)
            self.claim_next("w1")

    @precondition(lambda self: len(self.live()) < 4)
    @rule(session=st.integers(0, 1))
    def submit(self, session: int) -> None:
        run = make_run(session=Session.objects.get(id=self.sessions[session]))
        self.model.submitted(run.id, run.session_id)

    @precondition(lambda self: self.standing())
    @rule(run=RUNS)
    def cancel(self, run: Any) -> None:
        self.touched, model = run, self.model[run]
        if model.status in TERMINAL:
            with unchanged(run), pytest.raises(IllegalTransitionError):
                world.request_cancel(run, "enough")
            return
        promoted = world.request_cancel(run, "enough")
        model.cancel = True
        if model.status == Status.RUNNING:
            assert promoted == []
        else:
            had_its_turn = model.status in ACTIVE
            model.epoch += 1
            model.rows += 1
            model.released(Status.CANCELLED, model.wake_at)
            assert promoted == (self.model.promoted(model) if had_its_turn else [])

    @rule(run=RUNS, key=st.sampled_from(["", "k"]), inside=st.booleans())
    def signal(self, run: Any, key: str, inside: bool) -> None:
        """`inside` of a caller's transaction, who dies right after the commit."""
        model = self.model[run]
        repeated = bool(key) and Signal.objects.filter(run_id=run, key=key).exists()
        if model.status in TERMINAL:
            # What was told while it lived is no news: a repeat is the same signal, and harmless.
            with unchanged(run), nullcontext() if repeated else pytest.raises(IllegalTransitionError):
                world.send_signal(run, "news", None, key)
            return
        with transaction.atomic() if inside else nullcontext():
            assert world.send_signal(run, "news", None, key).new is not repeated
        if repeated:
            return
        model.unread += 1
        if inside:
            model.silent = True
        else:
            model.woken()

    @rule(seconds=SECONDS, swept=st.booleans())
    def time_goes_by(self, seconds: float, swept: bool) -> None:
        self.clock.advance(seconds)
        silent = {run for run, model in self.model.runs.items() if model.silent}
        assert set(world.waiting_silent(10)) == silent
        for run in silent if swept else ():
            world.wake_silent(run)
            self.model[run].silent = False
            self.model[run].woken()

    # ------------------------------------------------------------------------------------------ who gets a run

    @precondition(lambda self: self.claimable())
    @rule(run=CLAIMABLE, worker=WORKERS)
    def claim(self, run: Any, worker: str) -> None:
        claimable = self.model[run].claimable(self.clock.now)
        lease = world.claim(run, worker)
        assert (lease is not None) == claimable
        assert world.claim(run, "another") is None
        self._had(lease)

    @precondition(lambda self: self.claimable())
    @rule(worker=WORKERS)
    def claim_next(self, worker: str) -> None:
        claimable = self.claimable()
        lease = claim_next(worker, ["test/code"])
        assert lease is not None
        assert lease.run_id in claimable
        assert claimable != [lease.run_id] or claim_next("another", ["test/code"]) is None
        self._had(lease)

    def _had(self, lease: Lease | None) -> None:
        if lease is None:
            return
        self.touched = lease.run_id
        self.model[lease.run_id].claimed(lease.owner, self.clock.now)
        assert lease.epoch == self.model[lease.run_id].epoch
        self.held.append(lease)
        self.seen[lease.epoch, lease.run_id] = world.wake_state_later(lease)
        self.read[lease.epoch, lease.run_id] = (self.model[lease.run_id].messages, lease.run.inbox.latest("id").id)

    @precondition(lambda self: self.standing())
    @rule(worker=WORKERS, stale=st.booleans())
    def heartbeat(self, worker: str, stale: bool) -> None:
        """Of the last lease that the worker had of each run, or of the first."""
        mine = [lease for lease in self.held if lease.owner == worker]
        beating = {lease.run_id: lease for lease in (reversed(mine) if stale else mine)}
        seen = {run: self.seen[lease.epoch, run].wake_seq for run, lease in beating.items()}
        verdicts = world.heartbeat(worker, [(run, lease.epoch) for run, lease in beating.items()], seen)
        for run, lease in beating.items():
            model = self.model[run]
            standing = "cancel" if model.cancel else "woken" if model.wakes > seen[run] else "ok"
            assert verdicts[run] == (standing if model.writable(lease) else "lost")
            if model.owner == worker:
                model.renewed(self.clock.now)

    # ------------------------------------------------------------------------------------------ what a holder writes

    @precondition(lambda self: self.standing())
    @rule(lease=LEASES, kinds=KINDS, turn=st.booleans())
    def append(self, lease: Lease, kinds: list[str], turn: bool) -> None:
        turns = [NewTurn(lease.run.session_id, lease.run.agent, ChatMessage.of("assistant", "x"))] if turn else []
        self._write(lease, kinds, lambda entries: world.append(lease, entries, turns))

    @precondition(lambda self: self.standing())
    @rule(lease=LEASES, kinds=KINDS, status=ENDS)
    def finish(self, lease: Lease, kinds: list[str], status: Status) -> None:
        """Having read the messages that there were at the claim. A blocked run keeps its place in the session."""
        model = self.model[lease.run_id]
        read, upto = self.read[lease.epoch, lease.run_id]
        Run.objects.filter(id=lease.run_id).update(read_upto=upto)

        def write(entries: list[Entry]) -> Any:
            if status == Status.BLOCKED:
                return world.journal_block(lease, entries, error={})
            return world.finish(lease, status, entries, output="x")

        unread = model.messages > read and status == Status.COMPLETED
        if (answer := self._write(lease, kinds, write, refusal=world.UnreadMessages if unread else None)) is not None:
            # Whoever has asked for its end gets it, a mismatch or not.
            model.released(Status.PENDING if status == Status.BLOCKED and model.cancel else status)
            assert status == Status.BLOCKED or answer[1] == self.model.promoted(model)

    @precondition(lambda self: self.standing())
    @rule(lease=LEASES, kinds=KINDS, delay_s=DELAYS)
    def requeue(self, lease: Lease, kinds: list[str], delay_s: float) -> None:
        if self._write(lease, kinds, lambda entries: world.requeue(lease, entries, delay_s=delay_s)) is not None:
            self.model[lease.run_id].released(Status.PENDING, self._later(delay_s))

    @precondition(lambda self: self.standing())
    @rule(lease=LEASES, kinds=KINDS, delay_s=DELAYS, looks=st.booleans())
    def suspend(self, lease: Lease, kinds: list[str], delay_s: float, looks: bool) -> None:
        """`looks` once more for what has happened, before it waits."""
        if looks:
            self.seen[lease.epoch, lease.run_id] = world.wake_state_later(lease)
        seen = self.seen[lease.epoch, lease.run_id]
        waits, until = [{"kind": "signal"}], self._later(delay_s)

        def write(entries: list[Entry]) -> Any:
            return world.suspend(lease, entries, seen=seen.wake_seq, waits=waits, wake_at=until)

        if (answer := self._write(lease, kinds, write)) is not None:
            model = self.model[lease.run_id]
            waiting = seen.wake_seq == model.wakes and not model.cancel
            model.released(Status.SUSPENDED, until) if waiting else model.released(Status.PENDING)
            assert answer.status == model.status

    @precondition(lambda self: any(self.model[lease.run_id].unread for lease in self.standing()))
    @rule(lease=LEASES)
    def consume_signal(self, lease: Lease) -> None:
        """The oldest that is unread, and then once more."""
        seen = self.seen[lease.epoch, lease.run_id] = world.wake_state_later(lease)
        if seen.signals:

            def write(entries: list[Entry]) -> int:
                return world.consume_signal(lease, entries, signal_id=seen.signals[0][0])

            if self._write(lease, ["log"], write) is not None:
                self.model[lease.run_id].unread -= 1
                self._write(lease, ["log"], write, refusal=LeaseLostError)

    def _later(self, delay_s: float) -> Any:
        return self.clock.now + timedelta(seconds=delay_s) if delay_s else None

    @precondition(lambda self: self.standing())
    @rule(lease=LEASES, to=RUNS)
    def deliver(self, lease: Lease, to: Any) -> None:
        """A message to another run, or to itself."""
        self.paths += 1
        said = {**message(), "id": str(self.paths)}

        def write(entries: list[Entry]) -> int:
            return world.asking_deliver(lease, entries, target_id=to, message=said)

        if self._write(lease, ["log"], write) is not None and self.model[to].status not in TERMINAL:
            self.model[to].messages += 1
            self.model[to].woken()

    def _write(self, lease: Lease, kinds: list[str], write: Write, refusal: type[Exception] | None = None) -> Any:
        """The answer of a write under a lease that stands; None when it was refused, as it had to be."""
        self.touched, model = lease.run_id, self.model[lease.run_id]
        entries = [self._entry(kind) for kind in kinds]
        if not model.writable(lease):
            refusal = LeaseLostError
        if refusal is not None:
            with unchanged(lease.run_id), pytest.raises(refusal):
                write(entries)
            return None
        answer = write(entries)
        first = answer[0] if isinstance(answer, tuple) else getattr(answer, "first", answer)
        assert first == model.rows + 1
        model.wrote(kinds)
        return answer

    def _entry(self, kind: str) -> Entry:
        self.paths += 1
        return Entry(kind, str(self.paths), result={})

    # ------------------------------------------------------------------------------------------ after each step

    @invariant()
    def holds(self) -> None:
        rows = read()
        for run, row in rows.items():
            check_row(row, self.model[run], self.before.get(run, row))
            if row.status == Status.SUSPENDED:
                known = {signal for signal, _, _ in self.seen[row.epoch, run].signals}
                assert known.issuperset(row.unread), "a wake-up was lost"
        check_sessions(list(rows.values()))
        self._one_writer()
        self.before = rows

    def _one_writer(self) -> None:
        """Of all the leases that were ever given of the run, tried one by one."""
        assert sum(may_write(lease) for lease in self.held if lease.run_id == self.touched) <= 1
        self.touched = None


@on_postgresql
@pytest.mark.timeout(600)  # of a failure: to look for the shortest way there
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("examples", sizes(12, 50))
def test_the_store_does_what_its_model_does(examples):
    how = settings(
        max_examples=examples,
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),  # a busy machine must not fail it
    )

    run_state_machine_as_test(StoreMachine, settings=how)
