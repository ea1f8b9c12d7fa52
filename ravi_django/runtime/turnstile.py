"""What a lease commits comes back to the agent's code one result after the other, in the order of the rows.

A replay hands recorded results out in that order. Calls that race are answered in any: their commits come back from
several database threads, or in one turn of the loop. What the code made of it has to be made of it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

from ravi_django.runtime import tool_caps

TURNS = 10  # of the event loop, between two results: enough for one to come to who waits for it, over some tasks


class Commit:
    """A commit under way, whose seqs are not known yet."""

    __slots__ = ("begun",)

    def __init__(self, *, begun: bool = True) -> None:
        self.begun = begun

    def begin(self) -> None:
        """Of a transaction: until then it has no rows, and holds up nobody."""
        self.begun = True


class Turnstile:
    """Used on the loop's thread alone. `first` is the seq of the lease's next row, `alone` says that nothing races."""

    def __init__(self, first: int, alone: Callable[[], bool]) -> None:
        self._next = first
        self._alone = alone
        self._under_way: set[Commit] = set()
        self._waiting: list[tuple[int, set[Commit], asyncio.Future[None]]] = []  # a heap
        self._rests = False

    @contextmanager
    def committing(self, commit: Commit | None = None) -> Iterator[None]:
        """Around a commit, until its seqs are known and `through` is called; or it has failed."""
        commit = commit or Commit()
        self._under_way.add(commit)
        try:
            yield
        finally:
            self._under_way.discard(commit)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._look)  # whose it was comes here first

    async def through(self, first: int, count: int) -> None:
        """Return when it is the turn of the `count` rows from `first`: those before them, which other calls of this
        lease have committed or are about to, have come to who waited for them."""
        before = {commit for commit in self._under_way if commit.begun} if first > self._next else set()
        try:
            if (before or self._waiting or self._rests) and not self._alone():
                turn = asyncio.get_running_loop().create_future()
                heappush(self._waiting, (first, before, turn))
                self._look()
                with tool_caps.waiting():
                    await turn
            elif not self._alone():
                self._rest()
        finally:
            self._next = max(self._next, first + count)

    def _rest(self, turns: int = TURNS) -> None:
        self._rests = turns > 0
        if turns:
            asyncio.get_running_loop().call_soon(self._rest, turns - 1)
        else:
            self._look()

    def _look(self) -> None:
        """Whether it is the first one's turn."""
        while self._waiting and self._waiting[0][2].done():  # cancelled
            heappop(self._waiting)
        if self._waiting and not self._rests:
            first, before, turn = self._waiting[0]
            if first <= self._next or not before & self._under_way:
                heappop(self._waiting)
                turn.set_result(None)
                self._rest()
