"""What a run is by the design, in as few words as will do: who may claim it, who may write it, what wakes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from ravi_django.conf import conf
from ravi_django.kernel import LeaseLostError
from ravi_django.models import ACTIVE, TERMINAL, Status
from tests.support import world
from tests.support.world import Entry, Lease


@dataclass
class RunModel:
    session: UUID
    status: str
    epoch: int = 0
    owner: str = ""
    expires: datetime | None = None
    wake_at: datetime | None = None
    crashes: int = 0
    cancel: bool = False
    rows: int = 0
    wakes: int = 0
    unread: int = 0  # signals
    messages: int = 1
    silent: bool = False  # a signal is there for which nobody has woken the run

    def claimable(self, now: datetime) -> bool:
        if self.status == Status.RUNNING:
            return self.expires is not None and self.expires < now
        due = self.wake_at is not None and self.wake_at <= now
        return due if self.status == Status.SUSPENDED else self.status == Status.PENDING and (due or not self.wake_at)

    def writable(self, lease: Lease) -> bool:
        return (self.epoch, self.owner) == (lease.epoch, lease.owner)

    def claimed(self, owner: str, now: datetime) -> None:
        self.crashes += self.status == Status.RUNNING
        self.epoch += 1
        self.status, self.owner, self.wake_at = Status.RUNNING, owner, None
        self.renewed(now)

    def renewed(self, now: datetime) -> None:
        self.expires = now + timedelta(seconds=conf.LEASE_S)

    def wrote(self, kinds: list[str]) -> None:
        self.rows += len(kinds)
        if "tool.call" in kinds:
            self.crashes = 0

    def released(self, status: str, wake_at: datetime | None = None) -> None:
        self.status, self.wake_at, self.owner, self.expires = status, wake_at, "", None

    def woken(self) -> None:
        self.wakes += 1
        if self.status == Status.SUSPENDED:
            self.status, self.wake_at = Status.PENDING, None


class StoreModel:
    """The runs of a few sessions, all of one agent."""

    def __init__(self) -> None:
        self.runs: dict[Any, RunModel] = {}

    def __getitem__(self, run: Any) -> RunModel:
        return self.runs[run]

    def submitted(self, run: Any, session: UUID) -> None:
        busy = any(model.session == session and model.status in ACTIVE for model in self.runs.values())
        self.runs[run] = RunModel(session, Status.QUEUED if busy else Status.PENDING)

    def promoted(self, ended: RunModel) -> list[Any]:
        """The oldest run that waited behind the one that has ended, if any did."""
        behind = (ended.session, Status.QUEUED)
        found = sorted(run for run, model in self.runs.items() if (model.session, model.status) == behind)[:1]
        for run in found:
            self.runs[run].status = Status.PENDING
        return found


class Row(NamedTuple):
    """A run as the database has it, with the numbers of its journal."""

    id: UUID
    session: UUID
    status: str
    epoch: int
    owner: str
    expires: datetime | None
    wake_at: datetime | None
    crashes: int
    cancel: bool
    next_seq: int
    wakes: int
    journal: list[int]
    unread: list[int]  # signals for which the run was woken


def read() -> dict[UUID, Row]:
    """Every run, by one query: it is asked after each step."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT id, session_id, status, lease_epoch, lease_owner, lease_expires_at, wake_at, crashes,
              cancel_requested_at IS NOT NULL, next_seq, wake_seq,
              ARRAY(SELECT seq FROM ravi_journalentry WHERE run_id = run.id ORDER BY seq),
              ARRAY(SELECT id FROM ravi_signal WHERE run_id = run.id AND consumed_at IS NULL AND woke)
            FROM ravi_run AS run"""
        )
        return {row[0]: Row(*row) for row in cursor.fetchall()}


def check_row(row: Row, model: RunModel, before: Row) -> None:
    """It is what the model says, its journal has no gap, it has not gone back, and what has ended stays as it is."""
    found = (row.status, row.epoch, row.owner, row.expires, row.wake_at, row.crashes, row.cancel, row.wakes)
    state = (model.status, model.epoch, model.owner, model.expires, model.wake_at)
    assert found == (*state, model.crashes, model.cancel, model.wakes)
    assert row.journal == list(range(1, model.rows + 1))
    assert row.next_seq == model.rows + 1
    assert row.epoch >= before.epoch
    assert before.status not in TERMINAL or row.status == before.status


def check_sessions(rows: list[Row]) -> None:
    active = Counter(row.session for row in rows if row.status in ACTIVE)
    assert max(active.values(), default=1) == 1, "a session has two active roots"
    assert {row.session for row in rows if row.status == Status.QUEUED} <= active.keys(), "a run was left behind"


def may_write(lease: Lease) -> bool:
    with transaction.atomic():
        try:
            world.append(lease, [Entry("log", "probe")])
        except LeaseLostError:
            return False
        transaction.set_rollback(True)
        return True


@contextmanager
def unchanged(run: Any) -> Iterator[None]:
    """Nothing of the run is written."""
    before = _everything(run)
    yield
    assert _everything(run) == before


def _everything(run: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT to_jsonb(run),
              ARRAY(SELECT to_jsonb(t) FROM ravi_journalentry AS t WHERE run_id = run.id ORDER BY seq),
              ARRAY(SELECT to_jsonb(t) FROM ravi_turn AS t WHERE run_id = run.id ORDER BY position),
              ARRAY(SELECT to_jsonb(t) FROM ravi_signal AS t WHERE run_id = run.id ORDER BY id),
              ARRAY(SELECT to_jsonb(t) FROM ravi_inboxmessage AS t WHERE run_id = run.id ORDER BY id)
            FROM ravi_run AS run WHERE id = %s""",
            [run],
        )
        return cursor.fetchone()
