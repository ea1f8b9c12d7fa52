"""The gate between an agent's code and the world, for one lease: recall what was recorded, record what was done.

An outcome that ends the lease (retry, block, drain, lost) is never raised into the agent's code as an ordinary
exception, which it could swallow: the call is parked, other open effects finish and are recorded, and then
SuspendInterrupt unwinds every parked task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DataError, IntegrityError

from ravi_django.conf import conf
from ravi_django.kernel import (
    BudgetExhaustedError,
    CancellationToken,
    DeterminismError,
    ExecutionBudget,
    LeaseLostError,
    SuspendInterrupt,
    TransientError,
    UncertainEffectError,
)
from ravi_django.runtime import clock, frames, store
from ravi_django.runtime.database import DatabaseThreads
from ravi_django.runtime.entries import Entry, NewTurn, Recorded
from ravi_django.runtime.frames import Frame, Source
from ravi_django.runtime.publish import Publisher
from ravi_django.runtime.replay import Journal, check_identity, drift
from ravi_django.runtime.store import Lease

log = logging.getLogger("ravi.effects")

UNWIND_S = 1.0  # after an unwinding has begun, the agent's main task gets this long to see it

_inside: ContextVar[tuple[object, ...]] = ContextVar("ravi_inside", default=())  # the open effects around this code


@dataclass(slots=True)
class Spending:
    """What the run's model calls have used, recorded ones included: the same at the same place of every replay."""

    budget: ExecutionBudget
    tokens: int = 0
    cost: float = 0.0  # US dollars, where the price is known
    turns: int = 0  # model calls

    def add(self, tokens: int, cost: float | None) -> None:
        self.tokens += tokens
        self.cost += cost or 0.0
        self.turns += 1

    def check(self) -> None:
        """Before a model call: raise BudgetExhaustedError when nothing is left."""
        for name, used in (("max_tokens", self.tokens), ("max_cost_usd", self.cost), ("max_turns", self.turns)):
            limit = getattr(self.budget, name)
            if limit is not None and used >= limit:
                raise BudgetExhaustedError(f"the run has used its {name} of {limit:g}; submit it with a larger budget")


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the lease ends before the agent does: retry, block, fail, drain or lost."""

    kind: str
    error: Exception | None = None


class Effects:
    def __init__(
        self,
        lease: Lease,
        journal: Journal,
        *,
        database: DatabaseThreads,
        publisher: Publisher,
        run_sync: Callable[..., Any],
        inbox_upto: int | None,
        noted: set[str],
    ) -> None:
        self.lease = lease
        self.journal = journal
        self.database = database
        self.publisher = publisher
        self.run_sync = run_sync  # runs a sync tool on its own threads
        self.source = Source.of(lease.run, lease.epoch)
        self.inbox_upto = inbox_upto
        self.token = CancellationToken()
        self.renewed_at = time.monotonic()  # set by the heartbeat
        self.stop: Stop | None = None
        self.notes: list[Entry] = []  # ride on the next commit, in order
        self.turns: list[NewTurn] = []
        self.tool_calls = 0
        self.budget = Spending(ExecutionBudget.model_validate(lease.run.budget or {}))
        self.attempts = lease.run.attempts  # transient failures in a row
        self._noted = noted  # system rows that are there already
        self._open: set[object] = set()  # effects under way
        self._held: set[object] = set()  # of those, tool calls that wait for a parked call of their own
        self.unwinding = False  # SuspendInterrupt is on its way through the agent's code
        self._parked: set[asyncio.Future[None]] = set()
        self.asked: set[str] = set()  # paths of the calls made in this lease
        self.started: dict[str, Entry | Recorded] = {}  # at-most-once effects begun, and without a result
        self.on_stuck: Callable[[], None] = lambda: None  # ends a run whose main task waits for what was unwound
        expires = lease.run.lease_expires_at
        claimed = expires - timedelta(seconds=conf.LEASE_S) if expires else datetime.now(UTC)
        self._offset = claimed - datetime.now(UTC)  # the database's clock against ours

    # ------------------------------------------------------------------------------------------- recall

    async def recall(
        self, path: str, kind: str, name: str, arguments: Any, digests: dict[str, Any] | None
    ) -> Recorded | None:
        """The recorded result of the call at `path`, in its turn; None when it has to be made."""
        self.asked.add(path)
        row = self.journal.find(path)
        if row is None:
            if (begun := self.journal.started(path)) is not None:
                self.identity(begun, kind, name, arguments)
            return None
        try:
            check_identity(row, kind, name, arguments)
            changed = drift(row, digests)
            await self.journal.take(row)
        except DeterminismError as error:
            await self.end(Stop("block", error))
        if changed:
            self.note_drift(path, changed)
        return row

    def identity(self, row: Recorded, kind: str, name: str, arguments: Any) -> None:
        """Unwind and block the run when the journal has another call here."""
        try:
            check_identity(row, kind, name, arguments)
        except DeterminismError as error:
            self._stop_with(Stop("block", error))
            self.unwinding = True
            raise SuspendInterrupt from error

    # ------------------------------------------------------------------------------------------- perform

    @asynccontextmanager
    async def performing(self) -> AsyncIterator[None]:
        """Around an effect that is made now. What ends the lease does not come out of here as an exception."""
        await self._may_begin()
        effect = object()
        self._open.add(effect)
        inside = _inside.set((*_inside.get(), effect))
        try:
            yield
        except TransientError as error:
            self._stop_with(Stop("retry", error))
        except LeaseLostError as error:
            self._stop_with(Stop("lost", error))
        except UncertainEffectError as error:
            self._stop_with(Stop("block", error))
        finally:
            _inside.reset(inside)
            self._open.discard(effect)
            self._unwind_when_idle()
        if self.stop is not None and self.stop.kind != "drain":
            await self._park()

    async def _may_begin(self) -> None:
        self.token.check()
        if self.stop is None and time.monotonic() - self.renewed_at > conf.LEASE_S * 0.8:
            # Right before an external call: a worker that was asleep must not act on a lease that may be over.
            self._stop_with(Stop("lost", LeaseLostError(self.lease.run_id, self.lease.epoch)))
        if self.stop is not None and not (self.stop.kind == "drain" and _inside.get()):
            await self._park()  # but what an open tool call needs to finish may begin while the worker drains

    async def record(self, entry: Entry) -> int:
        """Commit an effect with the notes and turns before it; returns its seq. Raises LeaseLostError."""
        entries, turns = self.take_pending(entry)
        try:
            first, cancelled = await self.database.see_through(append_repeatable, self.lease, entries, turns)
        except (LeaseLostError, asyncio.CancelledError):
            raise
        except (DataError, ValueError, TypeError) as error:  # no other worker could write it either
            self._stop_with(Stop("fail", error))
            raise LeaseLostError(self.lease.run_id, self.lease.epoch) from error
        except Exception as error:
            # Done but not recorded: going on would build on nothing. The lease runs out and the run is taken over.
            log.exception("run %s: could not record", self.lease.run_id, extra={"action": "append.failed"})
            raise LeaseLostError(self.lease.run_id, self.lease.epoch) from error
        self.attempts = 0
        self.published(entries, first)
        if cancelled:
            raise asyncio.CancelledError
        return first + len(entries) - 1

    def take_pending(self, *entries: Entry) -> tuple[list[Entry], list[NewTurn]]:
        """Everything that has to be written now; nothing is left behind."""
        notes, self.notes = self.notes, []
        turns, self.turns = self.turns, []
        return [*notes, *entries], turns

    def published(self, entries: list[Entry], first_seq: int) -> None:
        """Send the durable frames of rows just written."""
        for seq, entry in enumerate(entries, first_seq):
            if found := frames.durable(self.source, entry, seq):
                self.publisher.emit(*found)

    def emit(self, frame: Frame) -> None:
        self.publisher.emit(frame)

    def note(self, entry: Entry) -> None:
        self.notes.append(entry)

    def note_once(self, entry: Entry) -> None:
        if entry.path not in self._noted:
            self._noted.add(entry.path)
            self.notes.append(entry)

    def note_drift(self, path: str, changed: list[str]) -> None:
        self.note_once(Entry(kind="replay.drift", path=f"@drift.{path}", result={"changed": changed}))

    def present(self) -> datetime:
        """Now, by the database's clock."""
        return clock.fixed() or datetime.now(UTC) + self._offset

    # --------------------------------------------------------------------------------------------- stop

    def drain(self) -> None:
        """Start no new effect; what is open may finish and be recorded."""
        self._stop_with(Stop("drain"))

    async def end(self, stop: Stop) -> None:
        """Never returns: the lease ends as `stop` says, once no effect is open."""
        self._stop_with(stop)
        await self._park()

    def _stop_with(self, stop: Stop) -> None:
        if self.stop is None or (self.stop.kind == "drain" and stop.kind != "drain"):
            self.stop = stop  # the first reason stays, but a drain gives way to any other
        self._unwind_when_idle()

    async def _park(self) -> None:
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked.add(parked)
        self._held.update(_inside.get())
        self._unwind_when_idle()
        try:
            await parked
        finally:
            self._parked.discard(parked)

    def _unwind_when_idle(self) -> None:
        if self.stop is not None and self._parked and self._open <= self._held:
            asyncio.get_running_loop().call_soon(self._unwind)

    def _unwind(self) -> None:
        if self._open <= self._held:
            self.unwinding = True
            for parked in self._parked:
                if not parked.done():
                    parked.set_exception(SuspendInterrupt())
            asyncio.get_running_loop().call_later(UNWIND_S, self.on_stuck)

    @property
    def waits(self) -> bool:
        """Whether the effect that this code is inside of waits for a parked call of its own."""
        inside = _inside.get()
        return self.stop is not None and bool(inside) and inside[-1] in self._held

    async def park(self) -> None:
        """Never returns: wait for the unwinding."""
        await self._park()

    def close(self) -> None:
        """The agent's code is over: whatever it left behind begins nothing more."""
        self.stop = self.stop or Stop("lost", LeaseLostError(self.lease.run_id, self.lease.epoch))

    def check_started(self) -> None:
        """At the end of the agent's code: raise UncertainEffectError when an at-most-once effect was left open."""
        left = {**self.journal.open_started(), **self.started}
        for path, entry in left.items():
            raise UncertainEffectError(
                f"{entry.name} was started at {path!r} and has no recorded result, and the run's code does not wait "
                "for it; it may or may not have happened, and a person decides",
                path=path,
                tool=entry.name,
            )

    @property
    def last_attempt(self) -> bool:
        """Whether one more transient error uses up the retries: then it is recorded, and the agent sees it."""
        return self.attempts + 1 >= int(conf.MAX_ATTEMPTS)


def append_repeatable(lease: Lease, entries: list[Entry], turns: list[NewTurn]) -> int:
    """Append; when the answer to an earlier try was lost on the way, finding our own row is success."""
    try:
        return store.append(lease, entries, turns)
    except IntegrityError:
        seq = store.already_appended(entries[0].id)
        if seq is None:
            raise
        return seq
