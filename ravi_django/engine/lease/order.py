"""Return results to the agent's code in journal order: recorded ones on replay, then those that this lease commits.

Concurrent commits finish in any order. Each result waits until the code has reacted to the result before it, so a
replay sees the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ravi_django.engine.journal.entries import Recorded
from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease import caps
from ravi_django.engine.lease.paths import Branches, Parked, inside


@dataclass(slots=True, eq=False)
class Commit:
    """A running commit, whose seqs are not known yet."""

    begun: bool = True  # False in a transaction before its append: no other result has to wait for it

    def begin(self) -> None:
        self.begun = True


class Turnstile:
    """Used only on the loop's thread. `first`: the seq of the lease's next row."""

    def __init__(self, first: int, journal: Journal, branches: Branches) -> None:
        self._next = first
        self._journal = journal
        self._branches = branches
        self._under_way: set[Commit] = set()
        self._turns: dict[int, tuple[set[Commit], Parked]] = {}  # results that wait for their turn, by seq

    @contextmanager
    def committing(self, commit: Commit | None = None) -> Iterator[None]:
        """Around a commit, until `through` is called or the commit has failed."""
        commit = commit or Commit()
        self._under_way.add(commit)
        try:
            yield
        finally:
            self._under_way.discard(commit)
            if self._turns:
                self._branches.ask()  # after the commit's own call

    async def take(self, row: Recorded) -> None:
        """Wait until every result recorded before this one was handed out."""
        try:
            await self._turn(row.seq, set())
        except asyncio.CancelledError:
            self._journal.take_now(row)  # it lost a race; results after it must not wait for it
            raise
        self._journal.take_now(row)

    async def through(self, first: int, count: int) -> None:
        """Wait for the turn of the `count` rows from `first`: until rows before them, committed by other calls of this
        lease, were handed out."""
        before = {commit for commit in self._under_way if commit.begun} if first > self._next else set()
        try:
            if not self._branches.alone:
                await self._turn(first, before)
        finally:
            self.passed(first, count)

    def passed(self, first: int, count: int) -> None:
        """The results of the `count` rows from `first` were handed out before their commit."""
        self._next = max(self._next, first + count)

    async def _turn(self, seq: int, before: set[Commit]) -> None:
        if not self._turns and self._may_pass(seq, before) and (self._branches.alone or self._branches.at_rest):
            return
        parked = Parked(asyncio.get_running_loop().create_future(), inside.get())
        self._turns[seq] = before, parked
        self._branches.ask()
        try:
            with caps.waiting():
                await parked.future
        finally:
            self._turns.pop(seq, None)

    def _may_pass(self, seq: int, before: set[Commit]) -> bool:
        if self._journal.replaying:
            return seq <= self._journal.next_seq
        return seq <= self._next or not before & self._under_way

    @property
    def waiting(self) -> list[Parked]:
        return [parked for _, parked in self._turns.values()]

    @property
    def seqs(self) -> Collection[int]:
        """The seqs of the results that wait for their turn."""
        return self._turns.keys()

    def hand_out(self) -> bool:
        """Hand out the first waiting result if it is its turn. The code is at rest."""
        seq = min(self._turns, default=None)
        if seq is None or not self._may_pass(seq, self._turns[seq][0]):
            return False
        _, parked = self._turns.pop(seq)
        if not parked.future.done():
            parked.future.set_result(None)
        return True

    def give_up(self) -> list[Parked]:
        """Return the calls that wait for their turn, and forget them."""
        given_up = self.waiting
        self._turns.clear()
        return given_up
