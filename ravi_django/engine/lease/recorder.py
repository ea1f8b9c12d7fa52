"""The journal of one lease as the agent's calls use it: recall recorded results, record new ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from django.db import DataError
from pydantic_core import from_json

from ravi_django.conf import conf
from ravi_django.engine.db.threads import AWAY_S, REPEAT_S, DatabaseThreads, may_pass
from ravi_django.engine.journal.entries import Entry, NewTurn, Recorded, fits_in_row
from ravi_django.engine.journal.replay import ARGUMENTS, arguments_digest, check_identity, drift, is_unordered
from ravi_django.engine.lease import paths, wake_state
from ravi_django.engine.lease.appender import Appender, Write, sleep_shielded
from ravi_django.engine.lease.lease_state import NotExpired, NotRecorded, StickyRevoked, Stop, TooManyRequests
from ravi_django.engine.lease.lease_stream import LeaseStream
from ravi_django.engine.lease.result_order import Commit
from ravi_django.engine.lease.run_tasks import inside
from ravi_django.engine.lease.stopwatch import waiting
from ravi_django.engine.lease.waits import Waits
from ravi_django.kernel import (
    AgentNotFoundError,
    CancellationError,
    ChatMessage,
    DeterminismError,
    LeaseLostError,
    Role,
    SpawnDeniedError,
    SuspendInterrupt,
)
from ravi_django.live.streams.publisher import Publisher
from ravi_django.models.fields import unpacked

log = logging.getLogger("ravi.effects")

REFUSALS = (CancellationError, SpawnDeniedError, AgentNotFoundError)
LATE_S = 0.001  # that a result waits for the next commit

P = ParamSpec("P")
T = TypeVar("T")


class CodeThreads:
    """Database threads for the code of one run: a call that fails for a transient reason is repeated, and the code sees
    no error. The run is not idle meanwhile."""

    def __init__(self, threads: DatabaseThreads, waits: Waits) -> None:
        self._threads = threads
        self._waits = waits

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        give_up = 0.0
        while True:
            try:
                return await self._threads.call(function, *args, **kwargs)
            except Exception as error:
                give_up = give_up or time.monotonic() + AWAY_S
                if not may_pass(error) or time.monotonic() > give_up:
                    raise
                log.warning("a call of the database is repeated: %s", error, extra={"action": "db.repeated"})
            with self._waits.busy():
                await asyncio.sleep(REPEAT_S)


class Recorder:
    def __init__(
        self,
        waits: Waits,
        *,
        appender: Appender,
        publisher: Publisher,
        run_sync: Callable[..., Any],
        wake: Callable[[Iterable[UUID]], None],
    ) -> None:
        self.waits = waits
        self.state = waits.state
        self.lease = self.state.lease
        self.journal = self.state.journal
        self.appender = appender
        self.threads = appender.database
        self.database = CodeThreads(self.threads, waits)
        self.stream = LeaseStream(publisher, self.lease.run, self.lease.epoch)
        self.run_sync = run_sync  # runs a sync tool on its own threads
        self.wake = wake  # hints runs that an effect has made claimable
        self.pending: list[Entry] = []  # rows written with the next commit, in order
        self.turns: list[NewTurn] = []
        self.progressed = asyncio.Event()  # set when a crashed run has recorded a new effect
        self._answer: Entry | None = None  # the last model call
        self._results: dict[str, Entry] = {}  # the tool calls since then by call id
        self._late: asyncio.TimerHandle | None = None  # begins to commit results that wait for the next commit
        self._flushing: asyncio.Task[None] | None = None
        self._refreshing = self._is_stale = False

    # ------------------------------------------------------------------------------------------- recall

    async def recall(
        self, path: str, kind: str, name: str, arguments: Any = None, *, digests: dict[str, Any] | None = None
    ) -> Recorded | None:
        """The recorded result of the call at `path`, when it is its turn; None if the call has to be made. The call is
        recorded with the digest of its `arguments`, which a replay compares; `digests` may differ, see `drift`."""
        digest = self.state.asked[path] = arguments_digest(arguments)
        row = self.journal.find(path)
        if row is None:
            if (begun := self.journal.started(path) or self.journal.paused(path)) is not None:
                self.check_identity(begun, kind, name, digest, arguments)
            return None
        try:
            check_identity(row, kind, name, digest, arguments)
            changed = drift(row, name, digests) if digests is not None else []
            if not is_unordered(path):
                await self._turn_of(row.seq, set())
        except DeterminismError as error:
            await self.waits.end(Stop(Stop.Kind.BLOCK, error))
        except asyncio.CancelledError:
            self.take_now(row)  # it lost a race; results after it must not wait for it
            raise
        self.take_now(row)
        if changed:
            self.record_drift(path, changed)
        return row

    async def _turn_of(self, seq: int, before: set[Commit]) -> None:
        """Wait for the turn of a result; see `ResultOrder`."""
        call = self.waits.order.enter(seq, before)
        if call is None:
            return
        self.waits.check_idle_soon()
        try:
            with waiting():
                await call.future
        finally:
            self.waits.order.leave(seq)

    def recall_unordered(self, path: str, kind: str, name: str = "") -> Recorded | None:
        """`recall` for a row that need not wait for its turn, such as a recorded time."""
        row = self.journal.find(path)
        if row is not None:
            self.check_identity(row, kind, name, None)
            self.take_now(row)
        return row

    def take_now(self, row: Recorded) -> None:
        """Count a recorded result as delivered."""
        self.journal.take_now(row)
        self.waits.poke()

    def check_identity(self, row: Recorded, kind: str, name: str, digest: str | None, arguments: Any = None) -> None:
        """Unwind and block the run if the journal has another call here."""
        try:
            check_identity(row, kind, name, digest, arguments)
        except DeterminismError as error:
            self.waits.unwind_with(Stop(Stop.Kind.BLOCK, error))
            raise SuspendInterrupt from error

    # -------------------------------------------------------------------------------------------- record

    @asynccontextmanager
    async def effect(self, *, flushed: bool = True) -> AsyncIterator[None]:
        """`Waits.effect`. Results that wait for the next commit are committed first, unless not `flushed`: for what may
        be repeated."""
        if flushed:
            try:
                await self.flush()
            except LeaseLostError as error:
                await self.waits.end(Stop(Stop.Kind.LOST, error))
        async with self.waits.effect():
            yield

    async def record(
        self,
        entry: Entry,
        write: Write | None = None,
        *,
        before: Sequence[Entry] = (),
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Commit an effect with the pending rows and turns, and its rows `before` this one; returns its seq when it is
        its turn in the order of rows. `write` appends and writes more in the same transaction; its errors roll back all
        and are raised. `then` is awaited after the commit, and not on a replay. Raises LeaseLostError."""
        with self.committing(Commit()):
            cancelled = await self.flushed(unless_alone=True)
            entries, turns = self.take_pending(*before, entry)
            first, again = await self._commit(entries, turns, write, own_rows=1 + len(before))
            if entry.phase == "result":
                self.state.close_call(entry.path)
                self._answered(entry)
            if cancelled or again:
                raise asyncio.CancelledError
            if then is not None:
                with waiting():
                    await then()
        await self.wait_turn(first, len(entries))
        return first + len(entries) - 1

    @contextmanager
    def committing(self, commit: Commit) -> Iterator[None]:
        """Around a commit; `wait_turn` follows."""
        try:
            with self.waits.order.committing(commit):
                yield
        finally:
            if self.waits.order.seqs:
                self.waits.check_idle_soon()  # after the commit's own call

    async def wait_turn(self, first: int, count: int) -> None:
        """Wait until rows before the `count` rows from `first`, committed by other calls of this lease, were
        delivered."""
        order = self.waits.order
        before = order.commits_before(first)
        try:
            if not self.waits.tasks.alone:
                await self._turn_of(first, before)
        finally:
            order.delivered(first, count)

    def record_later(self, entry: Entry) -> bool:
        """Commit the result of a call that may be made again: with the next commit, before the next act, or after
        `LATE_S`. Returns False, and does nothing, if code other than the agent's only task may act on it meanwhile."""
        is_cancelled = cast(asyncio.Task[Any], asyncio.current_task()).cancelling()
        if is_cancelled or not self.waits.tasks.alone or len(inside.get()) > 1 or self.state.stop is not None:
            return False
        if not fits_in_row(entry):
            return False
        request, result = map(from_json, entry.stored.values())  # the code may change its own values
        entry.request, entry.result = request, unpacked(result)
        self.state.count_attempts(0)
        self.pending.append(entry)
        self._answered(entry)
        self.stream.hold(entry)
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATE_S, self._flush, context=Context())
        return True

    async def flush(self) -> None:
        if self._late is None and self._flushing is None:
            return
        with self.waits.busy():
            if await self.flushed():
                raise asyncio.CancelledError

    async def flushed(self, *, unless_alone: bool = False) -> bool:
        """Commit the results that wait; with `unless_alone`, only those that another commit could overtake. Waits for
        the end even if cancelled; returns whether it was. Raises LeaseLostError: later rows must not be written."""
        cancelled = False
        while self._flushing is not None or (self._late is not None and not (unless_alone and self.waits.tasks.alone)):
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
            with self.waits.busy():
                first, _ = await self._commit(entries, turns, None)
        except LeaseLostError as error:
            self.waits.stop_with(Stop(Stop.Kind.LOST, error))
            raise
        self.waits.order.delivered(first, len(entries))
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
            self.pending[:0], self.turns[:0] = entries[: len(entries) - own_rows], turns
            if isinstance(error, CancellationError):
                self.state.token.cancel(error.reason)
            raise
        except (DataError, ValueError, TypeError) as error:  # no other worker could write it either
            self.waits.stop_with(Stop(Stop.Kind.FAIL, error))
            raise LeaseLostError(self.lease.run_id, self.lease.epoch) from error
        except Exception as error:
            # The effect is not recorded, so the code must stop. The lease expires, and the run is claimed again.
            log.exception("run %s: could not record", self.lease.run_id, extra={"action": "append.failed"})
            lost = LeaseLostError if may_pass(error) else NotRecorded
            raise lost(self.lease.run_id, self.lease.epoch) from error
        if any(not entry.path.startswith("@") for entry in entries):
            self.state.count_attempts(0)
        self.stream.published(entries, first)
        if self.lease.run.crashes and any(entry.is_effect for entry in entries):
            self.progressed.set()
        return first, cancelled

    async def _append(self, *args: Any) -> tuple[int, bool]:
        """Repeat the append while the database does not answer, until the fence refuses it or the process ends: an
        effect that has happened must be recorded. The run begins no new effect meanwhile."""
        first, error, cancelled = await self.appender.append(*args)
        if error is not None:
            with self._repeating():
                while error is not None and may_pass(error) and not self.state.gives_up:
                    warning = "run %s: an append failed and is repeated: %s"
                    log.warning(warning, self.lease.run_id, error, extra={"action": "append.repeated"})
                    cancelled |= await sleep_shielded(REPEAT_S)
                    first, error, again = await self.appender.append(*args)
                    cancelled |= again
                until = time.monotonic() + conf.LEASE_S / 4
                while error is None and not self.state.is_awake and time.monotonic() < until:  # the heartbeat follows
                    cancelled |= await sleep_shielded(0.1)
        if error is not None:
            raise error
        return cast(int, first), cancelled

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        """Around the repetition of an append: the run begins no new effect and is not idle."""
        self.state.repeating(1)
        try:
            yield
        finally:
            self.state.repeating(-1)
            self.waits.poke()

    def take_pending(self, *entries: Entry) -> tuple[list[Entry], list[NewTurn]]:
        """The entries to write now, with all pending rows and turns."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        pending, self.pending = self.pending, []
        turns, self.turns = self.turns, []
        rows = [*pending, *entries]
        self.journal.number(rows)
        for row in rows:
            if (digest := self.state.asked.get(row.path)) is not None:
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
        held = entry if entry and entry.blocks == blocks else None
        return NewTurn(session_id, agent, message, held, shared, seen)

    def record_with_next(self, entry: Entry) -> None:
        self.pending.append(entry)

    def record_with_next_once(self, entry: Entry) -> None:
        """The same for a row of the runtime, unless the generation has one at its path."""
        if entry.path not in self.state.noted:
            self.state.noted.add(entry.path)
            self.pending.append(entry)

    async def record_pending(self) -> None:
        """Commit the pending rows now."""
        self._flush()
        await self.flush()

    def record_drift(self, path: str, changed: list[str]) -> None:
        self.record_with_next_once(Entry(kind="replay.drift", path=f"@drift.{path}", result={"changed": changed}))

    async def refresh(self) -> None:
        """Read the run's wake state again, and check whether a wait is met."""
        self._is_stale = True
        if self._refreshing:  # the running refresh may have read before this call: it reads again
            return
        self._refreshing = True
        state = self.state
        try:
            while self._is_stale:
                self._is_stale = False
                new = await self.database.call(wake_state.later_than, self.lease, state.wake_state.wake_seq)
        finally:
            self._refreshing = False
        if new is None or state.stop is not None:  # then no wait is met any more: this must not count as seen
            return
        state.wake_state.update(new)
        self.waits.poke()
