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

from django.db import IntegrityError

from ravi_django.conf import conf
from ravi_django.kernel import (
    CancellationToken,
    DeterminismError,
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

_inside: ContextVar[tuple[object, ...]] = ContextVar("ravi_inside", default=())  # the open effects around this code


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the lease ends before the agent does: retry, block, drain or lost."""

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
        self.attempts = lease.run.attempts  # transient failures in a row
        self._noted = noted  # system rows that are there already
        self._open: set[object] = set()  # effects under way
        self._held: set[object] = set()  # of those, tool calls that wait for a parked call of their own
        self.unwinding = False  # SuspendInterrupt is on its way through the agent's code
        self._parked: set[asyncio.Future[None]] = set()
        expires = lease.run.lease_expires_at
        claimed = expires - timedelta(seconds=conf.LEASE_S) if expires else datetime.now(UTC)
        self._offset = claimed - datetime.now(UTC)  # the database's clock against ours

    # ------------------------------------------------------------------------------------------- recall

    async def recall(
        self, path: str, kind: str, name: str, arguments: Any, digests: dict[str, Any] | None
    ) -> Recorded | None:
        """The recorded result of the call at `path`, in its turn; None when it has to be made."""
        row = self.journal.find(path)
        if row is None:
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
        if self.stop is not None and self.stop.kind in ("retry", "lost", "block"):
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
            first = await self.database.call(append_repeatable, self.lease, entries, turns)
        except (LeaseLostError, asyncio.CancelledError):
            raise
        except Exception as error:
            # Done but not recorded: going on would build on nothing. The lease runs out and the run is taken over.
            log.exception("run %s: could not record", self.lease.run_id, extra={"action": "append.failed"})
            raise LeaseLostError(self.lease.run_id, self.lease.epoch) from error
        self.attempts = 0
        self.published(entries, first)
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
            self.stop = stop
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
