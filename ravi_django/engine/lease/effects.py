"""An agent's effects in one lease: recall their recorded results, record new ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from datetime import datetime
from functools import cached_property
from typing import Any, cast
from uuid import UUID

from django.db import DataError
from pydantic_core import from_json

from ravi_django.conf import conf
from ravi_django.engine.db.threads import REPEAT_S, CodeThreads, may_pass
from ravi_django.engine.journal.entries import Entry, NewTurn, Recorded, fits_in_row
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import ARGUMENTS, Journal, arguments_digest, check_identity, drift
from ravi_django.engine.lease import caps, facts as lease_facts, paths
from ravi_django.engine.lease.appender import Appender, Write, paused
from ravi_django.engine.lease.caps import Spent
from ravi_django.engine.lease.facts import Facts, Inbox
from ravi_django.engine.lease.gate import Gate, NotExpired, NotRecorded, StickyRevoked, Stop, TooManyRequests, Wait
from ravi_django.engine.lease.outlet import Outlet
from ravi_django.engine.lease.paths import inside
from ravi_django.kernel import (
    AgentNotFoundError,
    CancellationError,
    ChatMessage,
    DeterminismError,
    InvalidInputError,
    LeaseLostError,
    Message,
    Role,
    SpawnDeniedError,
    SuspendInterrupt,
)
from ravi_django.live.streams.publisher import Publisher

log = logging.getLogger("ravi.effects")

REFUSALS = (CancellationError, SpawnDeniedError, AgentNotFoundError)
LATE_S = 0.001  # that a result waits for the next commit


class Effects(Gate):
    def __init__(
        self,
        lease: Lease,
        journal: Journal,
        *,
        appender: Appender,
        publisher: Publisher,
        run_sync: Callable[..., Any],
        wake: Callable[[Iterable[UUID]], None],
        facts: Facts,
        noted: set[str],
        in_test: bool = False,
    ) -> None:
        super().__init__(lease, journal, facts, in_test=in_test)
        self.appender = appender
        self.threads = appender.database
        self.database = CodeThreads(self.threads, self.busy)
        self.outlet = Outlet(publisher, lease.run, lease.epoch)
        self.run_sync = run_sync  # runs a sync tool on its own threads
        self.wake = wake  # hints runs that an effect has made claimable
        self.inbox: list[tuple[int, Message]] = []  # messages of this generation that were read
        self.read_upto: int | None = None  # the last message that the code was given
        self.inbox_limit: int | None = None  # how many messages of a backlog are read at once
        self.inbox_more = False  # there are messages after those that were read
        self.notes: list[Entry] = []  # written with the next commit, in order
        self.turns: list[NewTurn] = []
        self._answer: Entry | None = None  # the last model call
        self._results: dict[str, Entry] = {}  # the tool calls since then by call id
        self.used_approvals: set[int] | None = None  # see `decisions`
        self.attempts = lease.run.attempts  # transient failures in a row
        self.on_progress: Callable[[], None] = lambda: None  # called when a crashed run has recorded a new effect
        self.entangled = lease.run.generation > 0 or journal.has_kind("child.spawned", "request.opened")
        self._noted = noted  # paths of system rows that are written
        self.deadline: datetime | None = None  # the run's own
        self.asked: dict[str, str | None] = {}  # by path of each call made in this lease: the digest of its arguments
        self.started: dict[str, Entry | Recorded] = {}  # at-most-once effects that have started and have no result
        self.uncertain: dict[str, Entry] = {}  # those of them that a person decides on
        self.requested: dict[str, str] = {}  # requests that this lease has opened
        self.paused: dict[str, dict[str, Any]] = {}  # the last pause of each tool call that continues after one
        self.summaries: set[int] = set()  # turns of this run that a removed compaction strategy has stored
        self._has_passed = False
        self.journal.on_passed = self._passed_over
        self._late: asyncio.TimerHandle | None = None  # begins to commit results that wait for the next commit
        self._flushing: asyncio.Task[None] | None = None
        self.taken_signals: set[int] = set()  # signals that a wait has taken
        self._ended_waits: set[int] = set()  # messages
        self._refreshing = self._is_stale = False

    def begin_with(self, unread: Inbox, limit: int | None) -> None:
        self.inbox_limit, self.inbox_more = limit, unread.more

    # ------------------------------------------------------------------------------------------- recall

    async def recall(
        self, path: str, kind: str, name: str, arguments: Any = None, *, digests: dict[str, Any] | None = None
    ) -> Recorded | None:
        """The recorded result of the call at `path`, when it is its turn; None if the call has to be made. The call is
        recorded with the digest of its `arguments`, which a replay compares; `digests` may differ, see `drift`."""
        digest = self.asked[path] = arguments_digest(arguments)
        self.journal.pass_summaries(path, self.asked)
        if self._has_passed and not self.summaries:
            self.summaries = await self.database.call(lease_facts.summaries, self.lease)
        row = self.journal.find(path)
        if row is None:
            if (begun := self.journal.started(path) or self.journal.paused(path)) is not None:
                self.identity(begun, kind, name, digest, arguments)
            return None
        try:
            check_identity(row, kind, name, digest, arguments)
            changed = drift(row, name, digests) if digests is not None else []
            await self.turnstile.take(row)
        except DeterminismError as error:
            await self.end(Stop(Stop.Kind.BLOCK, error))
        self._moved()
        if changed:
            self.note_drift(path, changed)
        return row

    def recall_now(self, path: str, kind: str, name: str = "") -> Recorded | None:
        """`recall` for a row that need not wait for its turn, such as a recorded time."""
        row = self.journal.find(path)
        if row is not None:
            self.identity(row, kind, name, None)
            self.journal.take_now(row)
        return row

    def identity(self, row: Recorded, kind: str, name: str, digest: str | None, arguments: Any = None) -> None:
        """Unwind and block the run if the journal has another call here."""
        try:
            check_identity(row, kind, name, digest, arguments)
        except DeterminismError as error:
            self._stop_with(Stop(Stop.Kind.BLOCK, error))
            self._begin_unwinding()
            raise SuspendInterrupt from error

    # -------------------------------------------------------------------------------------------- record

    async def record(
        self,
        entry: Entry,
        write: Write | None = None,
        *,
        before: Sequence[Entry] = (),
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Commit an effect with the pending notes and turns, and its rows `before` this one; returns its seq when it is
        its turn in the order of rows. `write` appends and writes more in the same transaction; its errors roll back all
        and are raised. `then` is awaited after the commit, and not on a replay. Raises LeaseLostError."""
        with self.turnstile.committing():
            cancelled = await self.flushed(unless_alone=True)
            entries, turns = self.take_pending(*before, entry)
            first, again = await self._commit(entries, turns, write, own_rows=1 + len(before))
            if entry.phase == "result":
                self.close_call(entry.path)
                self._answered(entry)
            if cancelled or again:
                raise asyncio.CancelledError
            if then is not None:
                with caps.waiting():
                    await then()
        await self.turnstile.through(first, len(entries))
        return first + len(entries) - 1

    def record_later(self, entry: Entry) -> bool:
        """Commit the result of a call that may be made again: with the next commit, before the next act, or after
        `LATE_S`. Returns False, and does nothing, if code other than the agent's only task may act on it meanwhile."""
        is_cancelled = cast(asyncio.Task[Any], asyncio.current_task()).cancelling()
        if is_cancelled or not self.branches.alone or len(inside.get()) > 1 or self.stop is not None:
            return False
        if not fits_in_row(entry):
            return False
        entry.request, entry.result = map(from_json, entry.stored.values())  # the code may change its own values
        self.attempts = 0
        self.notes.append(entry)
        self._answered(entry)
        self.outlet.hold(entry)
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATE_S, self._flush, context=Context())
        return True

    async def flush(self) -> None:
        if self._late is None and self._flushing is None:
            return
        with self.busy():
            if await self.flushed():
                raise asyncio.CancelledError

    async def flushed(self, *, unless_alone: bool = False) -> bool:
        """Commit the results that wait; with `unless_alone`, only those that another commit could overtake. Waits for
        the end even if cancelled; returns whether it was. Raises LeaseLostError: later rows must not be written."""
        cancelled = False
        while self._flushing is not None or (self._late is not None and not (unless_alone and self.branches.alone)):
            running = self._flushing or self._flush()
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                if running.cancelled():
                    raise
                cancelled = True
        return cancelled

    def _flush(self) -> asyncio.Task[None]:
        entries, turns = self.take_pending()
        with paths.entered(None):  # not part of the agent's code
            self._flushing = asyncio.ensure_future(self._write_late(entries, turns))
        self._flushing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._flushing

    async def _write_late(self, entries: list[Entry], turns: list[NewTurn]) -> None:
        try:
            with self.busy():
                first, _ = await self._commit(entries, turns, None)
        except LeaseLostError as error:
            self._stop_with(Stop(Stop.Kind.LOST, error))
            raise
        self.turnstile.passed(first, len(entries))
        self._flushing = None

    async def _commit(
        self, entries: list[Entry], turns: list[NewTurn], write: Write | None, own_rows: int = 0
    ) -> tuple[int, bool]:
        """Returns the first seq, and whether the caller was cancelled meanwhile. `own_rows`: the effect's, which are
        the last ones. The others are pending again if the write is refused."""
        try:
            first, cancelled = await self._append(self.lease, entries, turns, write)
        except (LeaseLostError, asyncio.CancelledError):
            raise
        except (*REFUSALS, NotExpired, StickyRevoked, TooManyRequests) as error:
            self.notes[:0], self.turns[:0] = entries[: len(entries) - own_rows], turns
            if isinstance(error, CancellationError):
                self.token.cancel(error.reason)
            raise
        except (DataError, ValueError, TypeError) as error:  # no other worker could write it either
            self._stop_with(Stop(Stop.Kind.FAIL, error))
            raise LeaseLostError(self.lease.run_id, self.lease.epoch) from error
        except Exception as error:
            # The effect is not recorded, so the code must stop. The lease expires, and the run is claimed again.
            log.exception("run %s: could not record", self.lease.run_id, extra={"action": "append.failed"})
            lost = LeaseLostError if may_pass(error) else NotRecorded
            raise lost(self.lease.run_id, self.lease.epoch) from error
        self.attempts = 0
        self.outlet.published(entries, first)
        if self.lease.run.crashes and any(entry.is_effect for entry in entries):
            self.on_progress()
        return first, cancelled

    async def _append(self, *args: Any) -> tuple[int, bool]:
        """Repeat the append while the database does not answer, until the fence refuses it or the process ends: an
        effect that has happened must be recorded. The run begins no new effect meanwhile."""
        first, error, cancelled = await self.appender.append(*args)
        if error is not None:
            with self.repeating():
                while error is not None and may_pass(error) and not self.gives_up:
                    warning = "run %s: an append failed and is repeated: %s"
                    log.warning(warning, self.lease.run_id, error, extra={"action": "append.repeated"})
                    cancelled |= await paused(REPEAT_S)
                    first, error, again = await self.appender.append(*args)
                    cancelled |= again
                until = time.monotonic() + conf.LEASE_S / 4
                while error is None and not self.is_awake and time.monotonic() < until:  # the heartbeat follows
                    cancelled |= await paused(0.1)
        if error is not None:
            raise error
        return cast(int, first), cancelled

    def close_call(self, path: str) -> None:
        """Forget a tool call that has its result."""
        for calls in (self.started, self.uncertain, self.paused):
            calls.pop(path, None)
        self.journal.open_started.pop(path, None)

    def take_pending(self, *entries: Entry) -> tuple[list[Entry], list[NewTurn]]:
        """The entries to write now, with all pending notes and turns."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        notes, self.notes = self.notes, []
        turns, self.turns = self.turns, []
        rows = [*notes, *entries]
        self.journal.number(rows)
        for row in rows:
            if (digest := self.asked.get(row.path)) is not None:
                row.digests = {**(row.digests or {}), ARGUMENTS: digest}
        return rows, turns

    def _answered(self, entry: Entry) -> None:
        if entry.kind == "llm.call":
            self._answer, self._results = entry, {}
        elif entry.kind == "tool.call" and (call_id := (entry.request or {}).get("call_id")):
            self._results[call_id] = entry

    def turn(
        self, session_id: UUID, agent: str, message: ChatMessage, *, shared: bool = False, seen: int | None = None
    ) -> NewTurn:
        """A turn to write. It refers to the row that holds the same blocks, if one of this lease does."""
        blocks = message.to_json()["content"]
        entry = self._answer
        if message.role is Role.TOOL:
            entry = self._results.get(blocks[0].get("call_id", "")) if blocks else None
        held = entry.id if entry and entry.blocks == blocks else None
        return NewTurn(session_id, agent, message, held, shared, seen)

    def note(self, entry: Entry) -> None:
        self.notes.append(entry)

    def note_once(self, entry: Entry) -> None:
        if entry.path not in self._noted:
            self._noted.add(entry.path)
            self.notes.append(entry)

    def _passed_over(self, row: Recorded) -> None:
        """Note a recorded summary that the code no longer asks for."""
        self._has_passed = True
        self.note_drift(row.path, ["strategy"])

    def note_drift(self, path: str, changed: list[str]) -> None:
        self.note_once(Entry(kind="replay.drift", path=f"@drift.{path}", result={"changed": changed}))

    async def refresh(self) -> None:
        """Read the run's facts again, and check whether a wait is met."""
        self._is_stale = True
        if self._refreshing:  # the running refresh may have read before this call: it reads again
            return
        self._refreshing = True
        try:
            while self._is_stale:
                self._is_stale = False
                new = await self.database.call(lease_facts.facts, self.lease, self.facts.wake_seq)
        finally:
            self._refreshing = False
        if new is None or self.stop is not None:  # then no wait is met any more: these facts must not count as seen
            return
        new.signals = [signal for signal in new.signals if signal[0] not in self.taken_signals]
        self.facts = new
        self.poke()

    def take_signal(self, *names: str) -> tuple[int, Any] | None:
        """Take the oldest unread signal of one of these names: no other wait gets it."""
        for index, (signal_id, signal_name, payload) in enumerate(self.facts.signals):
            if signal_name in names:
                del self.facts.signals[index]
                self.taken_signals.add(signal_id)
                return signal_id, payload
        return None

    def take_message(self, signal: str) -> int | None:
        """The position of the oldest message that ends a wait for this signal, that the code was not given, and that
        ended no other wait."""
        for position, name in self.facts.broadcasts:
            if name == signal and position > (self.read_upto or 0) and position not in self._ended_waits:
                self._ended_waits.add(position)
                return position
        return None

    @property
    def has_unread(self) -> bool:
        """Whether there are messages that the code was not given."""
        return self.inbox_more or (bool(self.inbox) and self.inbox[-1][0] > (self.read_upto or 0))

    async def wait(self, wait: Wait, path: str = "") -> Any:
        """`Gate.wait` for the call at `path`. Raises InvalidInputError inside an at-most-once tool."""
        self.check_may_wait(path)
        with caps.waiting():
            return await super().wait(wait)

    def check_may_wait(self, path: str) -> None:
        """Raise InvalidInputError inside an at-most-once tool: a wait would call it again."""
        for begun in self.started:
            if path.startswith(f"{begun}/"):
                raise InvalidInputError(
                    f"the tool at {begun!r} is at-most-once and cannot wait: it would be called again after the "
                    "wait. Wait before it in the agent's code, or make the tool idempotent",
                    field="effect",
                )

    @cached_property
    def spent(self) -> Spent:
        """The usage of the run's tool calls."""
        return Spent.of(self.journal.recorded(caps.KIND))

    # --------------------------------------------------------------------------------------------- the end

    @property
    def retains(self) -> bool:
        """Whether all turns of the run are known to outlive it. The notes of earlier generations are not known here."""
        return self.lease.run.generation == 0 and not any(path.startswith(RETENTION) for path in self._noted)

    def left_open(self) -> dict[str, Entry | Recorded]:
        """At-most-once effects that have started and have no result, by path."""
        return {**self.journal.open_started, **self.started, **self.uncertain}

    @property
    def last_attempt(self) -> bool:
        """Whether the next transient error is final: it is recorded, and the agent gets it."""
        return self.attempts + 1 >= int(conf.MAX_ATTEMPTS)


RETENTION = "@retention."  # path prefix before an agent's address: its turns of this run are deleted with the run
