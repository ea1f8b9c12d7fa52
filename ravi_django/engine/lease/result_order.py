"""Return results to the agent's code in journal order: recorded ones on replay, then those that this lease commits.

Concurrent commits finish in any order. Each result waits until the code has reacted to the result before it, so a
replay sees the same order. `Recorder` awaits the waiting calls, and `Waits` delivers them when the code is at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.run_tasks import RunTasks, WaitingCall, inside


@dataclass(slots=True, eq=False)
class Commit:
    """A running commit, whose seqs are not known yet."""

    begun: bool = True  # False in a transaction before its append: no other result has to wait for it

    def begin(self) -> None:
        self.begun = True


class ResultOrder:
    """Used only on the loop's thread. `first`: the seq of the lease's next row."""

    def __init__(self, first: int, journal: Journal, tasks: RunTasks) -> None:
        self._next = first
        self._journal = journal
        self._tasks = tasks
        self._under_way: set[Commit] = set()
        self._pending: dict[int, tuple[set[Commit], WaitingCall]] = {}  # results that wait for their turn, by seq

    @contextmanager
    def committing(self, commit: Commit) -> Iterator[None]:
        """Around a commit and the wait for the turn of its rows."""
        self._under_way.add(commit)
        try:
            yield
        finally:
            self._under_way.discard(commit)

    def commits_before(self, first: int) -> set[Commit]:
        """The running commits, whose rows may come before the row `first`."""
        return {commit for commit in self._under_way if commit.begun} if first > self._next else set()

    def delivered(self, first: int, count: int) -> None:
        """The results of the `count` rows from `first` were delivered."""
        self._next = max(self._next, first + count)

    def enter(self, seq: int, before: set[Commit]) -> WaitingCall | None:
        """A call that waits for its turn, until `leave`; None if its turn is now."""
        if not self._pending and self._may_pass(seq, before) and (self._tasks.alone or paths.at_rest(self._tasks)):
            return None
        call = WaitingCall(asyncio.get_running_loop().create_future(), inside.get())
        self._pending[seq] = before, call
        return call

    def leave(self, seq: int) -> None:
        self._pending.pop(seq, None)

    def _may_pass(self, seq: int, before: set[Commit]) -> bool:
        if self._journal.replaying:
            return seq <= self._journal.next_seq
        return seq <= self._next or not before & self._under_way

    @property
    def waiting(self) -> list[WaitingCall]:
        return [call for _, call in self._pending.values()]

    @property
    def seqs(self) -> Collection[int]:
        """The seqs of the results that wait for their turn."""
        return self._pending.keys()

    def deliver_next(self) -> bool:
        """Deliver the first waiting result if it is its turn. The code is at rest."""
        seq = min(self._pending, default=None)
        if seq is None or not self._may_pass(seq, self._pending[seq][0]):
            return False
        _, call = self._pending.pop(seq)
        if not call.future.done():
            call.future.set_result(None)
        return True

    def give_up(self) -> list[WaitingCall]:
        """Return the calls that wait for their turn, and forget them."""
        given_up = self.waiting
        self._pending.clear()
        return given_up
