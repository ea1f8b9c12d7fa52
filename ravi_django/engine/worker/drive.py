"""One lease of a run: load → run → settle → release. `Engine` claims the leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from django.db import DataError

from ravi_django.calls.model import lost
from ravi_django.calls.tools.tool_threads import ToolThreads
from ravi_django.conf import conf
from ravi_django.engine.db.threads import DatabaseThreads, may_pass
from ravi_django.engine.journal import bodies
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease import claims, inbox as lease_inbox, wake_state
from ravi_django.engine.lease.appender import Appender
from ravi_django.engine.lease.claims import SUSPECT
from ravi_django.engine.lease.inbox import as_depth
from ravi_django.engine.lease.lease_state import HANDOFF, LeaseState, Mailbox, NotRecorded
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.waits import Waits
from ravi_django.engine.worker import settle, stopped
from ravi_django.engine.worker.execution import Execution, MessageBatches
from ravi_django.engine.worker.settle import Outcome
from ravi_django.kernel import (
    Agent,
    AgentCrashError,
    AgentNotFoundError,
    DeterminismError,
    HandlerError,
    InvalidInputError,
    LeaseLostError,
    Message,
    NotFoundError,
    PermanentError,
    RunMeta,
)
from ravi_django.kernel.supervision import DEADLINE
from ravi_django.live.streams import frames, republish
from ravi_django.live.streams.publisher import Publisher
from ravi_django.live.streams.republish import archived_at
from ravi_django.models import TERMINAL, Run, Status
from ravi_django.runs import failures, hints
from ravi_django.runs.catalog import specs
from ravi_django.runs.catalog.registry import pinned_spec
from ravi_django.runs.lifecycle import endings as lifecycle_cancel, generations
from ravi_django.runs.lifecycle.endings import UnreadMessages

log = logging.getLogger("ravi.engine")

NEAR_S = 60.0  # the process itself hints a run with a timer that is due within this time; the sweep hints all


@dataclass(slots=True)
class Active:
    """A run that this process drives."""

    lease: Lease
    recorder: Recorder
    execution: Execution | None = None  # None before the code starts
    lost: bool = False

    def cancel_task(self) -> None:
        if self.execution is not None:
            self.execution.cancel(lost=self.lost)


class Driver:
    """Drives leases, one call of `_drive_lease` each. `Engine` claims them and sets these attributes."""

    name: str
    loop: asyncio.AbstractEventLoop
    draining: bool
    in_test: bool
    appender: Appender
    database: DatabaseThreads
    publisher: Publisher
    look: Callable[[], None]  # looks for the next claimable run
    hint: Callable[[UUID | str], asyncio.Task[bool] | None]  # tries for the lease of a run, in the background
    promote: Callable[[UUID], None]  # hints a run that has become claimable
    wake: Callable[[Iterable[UUID]], None]  # hints runs that a run driven here has made claimable
    verdict: Callable[[UUID, int, str], None]  # takes the heartbeat's verdict on a lease

    def __init__(self) -> None:
        self.active: dict[UUID, Active] = {}
        self._awaited: dict[UUID, list[asyncio.Future[Run | None]]] = {}  # by run, the callers of `lease_end`
        self._tools = ToolThreads(int(conf.TOOL_THREADS))
        self._suspect: UUID | None = None  # the one run driven here that has crashed twice in a row

    async def _drive_lease(self, lease: Lease) -> None:
        run, is_second, ending, unpaid = lease.run, False, None, list[Entry]()
        quarantine: asyncio.Task[None] | None = None
        if run.crashes >= SUSPECT:
            is_second = self._suspect is not None  # two were claimed at once
            self._suspect = self._suspect or run.id
        try:
            unpaid = await self._lost(lease)
            # A run without a slot is claimed only if its worker died before it released it.
            if is_second or run.awaits_slot:
                await self._write_lost(lease, unpaid)
                await self.database.call(settle.give_back, lease)
                return
            agent, active, batches = await self._prepare(lease)
            if unpaid:  # before the next request, which may be lost too
                active.recorder.pending += unpaid
                unpaid = []
                await active.recorder.record_pending()
            quarantine = self._watch_quarantine(active)
            outcome = await self._run(agent, active, batches)
            ending = await self._finish(active, outcome)
        except LeaseLostError as error:
            log.warning("run %s: %s", lease.run_id, error, extra={"action": "lease.lost"})
            if isinstance(error, NotRecorded):
                await self._let_expire(lease)
        except settle.NotDrivable as error:
            await self._write_lost(lease, unpaid)
            await self._release_undrivable(lease, error)
        except Exception as error:
            log.exception("run %s: could not be driven", lease.run_id, extra={"action": "lease.failed"})
            if not may_pass(error):
                await self._let_expire(lease)
        finally:
            if quarantine is not None:
                quarantine.cancel()
            self._ended_with(lease, ending)

    def _ended_with(self, lease: Lease, ending: Run | None) -> None:
        self._forget(lease)
        self._end_quarantine(lease.run_id)
        for waiting in self._awaited.pop(lease.run_id, ()):
            if not waiting.done():
                waiting.set_result(ending)

    def lease_end(self, run_id: UUID) -> asyncio.Future[Run | None]:
        """Resolves when the next lease of the run in this process ends, with the run's end if it was that. Cancel it
        to stop waiting."""
        future: asyncio.Future[Run | None] = self.loop.create_future()
        self._awaited.setdefault(run_id, []).append(future)
        future.add_done_callback(partial(self._no_longer_awaited, run_id))
        return future

    def _no_longer_awaited(self, run_id: UUID, future: asyncio.Future[Run | None]) -> None:
        if future in (others := self._awaited.get(run_id, [])):  # else its lease has ended
            others.remove(future)
            if not others:
                del self._awaited[run_id]

    async def _let_expire(self, lease: Lease) -> None:
        """Let the lease expire as a crash, although this worker lives: the run may be the cause."""
        with suppress(Exception):
            await self.database.call(claims.abandon, lease)

    def _watch_quarantine(self, active: Active) -> asyncio.Task[None] | None:
        """End the quarantine of a crash suspect once it has recorded a new effect."""

        async def watch() -> None:
            await active.recorder.progressed.wait()
            self._end_quarantine(active.lease.run_id)

        return asyncio.create_task(watch()) if self._suspect == active.lease.run_id else None

    def _end_quarantine(self, run_id: UUID) -> None:
        """The run has recorded a new effect, or its lease has ended: the next suspect may begin."""
        if self._suspect == run_id:
            self._suspect = None
            self.look()

    def _forget(self, lease: Lease) -> None:
        """Stop renewing this lease. A later lease of the same run on this worker stays."""
        active = self.active.get(lease.run_id)
        if active is not None and active.lease is lease:
            del self.active[lease.run_id]

    async def _lost(self, lease: Lease) -> list[Entry]:
        """The rows of the model requests that were lost with the former worker."""
        if lease.expired_at is None:
            return []
        agent = None
        with suppress(settle.NotDrivable):
            agent = await self._agent_of(lease)
        try:
            return await lost.entries(self.database, lease, getattr(agent, "model", None))
        except Exception as error:
            if may_pass(error):
                raise
            log.exception("run %s: its lost requests are not on the bill", lease.run_id, extra={"action": "bill.lost"})
            return []

    async def _write_lost(self, lease: Lease, unpaid: list[Entry]) -> None:
        if unpaid:
            await self.database.call(lost.write, lease, unpaid)

    async def _prepare(self, lease: Lease) -> tuple[Agent, Active, MessageBatches]:
        """Find the agent, read journal and inbox, and register the run in `active`."""
        if lease.run.crashes >= conf.MAX_ATTEMPTS:
            raise settle.NotDrivable(AgentCrashError(lease.run_id, lease.run.agent), block=True)
        agent = await self._agent_of(lease)
        limit = lease_inbox.limit_of(agent)
        try:
            if lease.fault:
                raise ValueError(lease.fault)
            load = wake_state.load_with_wake_state
            known = wake_state.is_loaded(lease)
            loaded, woken = load(lease, limit) if known else await self.database.call(load, lease, limit)
        except ValueError as error:  # another try would fail too
            unreadable = PermanentError(
                f"a row of this run cannot be read: {error}; correct the row, then retry the run"
            )
            raise settle.NotDrivable(unreadable, block=True) from error
        try:
            inbox = [(position, Message.model_validate(body)) for position, body in loaded.unread.messages]
            pinned_spec(agent, lease.run.agent_version)
            journal = Journal(loaded.journal, lease.run.schema)
        except DeterminismError as error:
            raise settle.NotDrivable(error, block=True) from error
        except Exception as error:  # another try would fail too
            raise settle.NotDrivable(HandlerError(error), block=True) from error
        self.publisher.open(lease.run)
        state = LeaseState(
            lease,
            journal,
            Mailbox(inbox, limit=limit, more=loaded.unread.more),
            woken,
            noted=[row.path for row in loaded.journal if row.path.startswith("@")],
            summaries=loaded.summaries,
        )
        recorder = Recorder(
            Waits(state, in_test=self.in_test),
            appender=self.appender,
            publisher=self.publisher,
            run_sync=self._tools.run,
            wake=self.wake,
        )
        active = self.active[lease.run_id] = Active(lease, recorder)
        # A dead worker may not have published its last rows. The buffer may have let go of those that are archived.
        if lease.run.crashes:
            archived = await self.database.call(archived_at, lease.run.tree_id)
            for row in loaded.journal:
                if archived is None or row.finished_at > archived:
                    self.publisher.emit(*frames.durable(recorder.stream.source, row, row.seq))
        batches = MessageBatches(recorder)
        if lease.run.generation and recorder.journal.find("@started") is None:
            await self._begin_behind(recorder, batches)
        await self._record_beginning(agent, recorder, batches)
        return agent, active, batches

    async def _begin_behind(self, recorder: Recorder, batches: MessageBatches) -> None:
        run = recorder.lease.run
        row = await self.database.call(generations.begun_by, run)
        if row is None:
            return
        batches.begin_behind(row.result)
        if row.kind == HANDOFF and row.seq == run.next_seq - 1:  # its worker may have died before it published it
            source = replace(recorder.stream.source, agent=(row.result or {})["from"])
            self.publisher.emit(*frames.durable(source, row, row.seq))

    async def _agent_of(self, lease: Lease) -> Agent:
        """The registered agent, or the agent of the spec that the run was created with."""
        try:
            if lease.run.agent_version is None:
                return specs.agent_of(lease.run)
            return await self.database.call(specs.agent_of, lease.run)
        except (AgentNotFoundError, InvalidInputError) as error:  # another process may have its code or its tools
            raise settle.NotDrivable(error, block=False) from error
        except NotFoundError as error:
            raise settle.NotDrivable(error, block=True) from error

    async def _record_beginning(self, agent: Agent, recorder: Recorder, batches: MessageBatches) -> None:
        """Note the first row of the run, which pins the agent's spec, or of a later lease."""
        lease = recorder.lease
        digest, spec = pinned_spec(agent, lease.run.agent_version)
        await bodies.keep(self.database, {digest: lambda: spec})
        started = Entry("run.started", "@started", result={"spec": digest, "worker": self.name})
        if lease.run.agent_version is not None:
            started.result["version"] = lease.run.agent_version
        started.read_upto = batches.first_upto  # later messages are not part of the first batch
        started.result |= as_depth(batches.depth)
        recorder.record_with_next_once(started)
        if started in recorder.pending:  # it will be the next row, so its frame need not wait for the commit
            self.publisher.emit(*frames.durable(recorder.stream.source, started, lease.run.next_seq))
        if lease.epoch > 1:
            recorder.record_with_next(settle.resumed(lease))

    async def _run(self, agent: Agent, active: Active, batches: MessageBatches) -> Outcome:
        """Run the agent's code from the top until it ends or is stopped."""
        if active.lost:
            raise LeaseLostError(active.lease.run_id, active.lease.epoch)
        if self.draining:  # its code would begin too late to be stopped, and its tasks may have no paths any more
            return Outcome(Status.PENDING)
        try:
            execution = active.execution = Execution(agent, active.recorder, batches)
        except Exception as error:  # invalid tools, middlewares or hooks: another try would fail too
            raise settle.NotDrivable(HandlerError(error), block=True) from error
        execution.begin()
        if active.lease.run.cancel_requested_at is not None:
            self.cancel(active, active.lease.run.cancel_reason)
            if active.lease.epoch > 1:
                active.recorder.turns += await self.database.call(stopped.turns_of, agent, active.recorder)
        alarm = self._set_deadline(active, execution.meta)
        try:
            return await execution.end()
        finally:
            if alarm is not None:
                alarm.cancel()

    async def _finish(self, active: Active, outcome: Outcome) -> Run | None:
        """Record how the lease ended, publish it, and release the lease. Returns the run's end, if it has ended."""
        recorder, lease = active.recorder, active.lease
        if outcome.status == Status.CANCELLED:  # the heartbeat does not read the reason
            reason = await self.database.call(lifecycle_cancel.cancel_reason, lease.run_id)
            outcome = Outcome.of_cancel(reason or "cancelled")
        outcome = await self._flushed(recorder, outcome)
        entries, turns = recorder.take_pending(*outcome.entries(lease))
        if outcome.status not in TERMINAL:  # another process may claim it next
            await self.publisher.sent(str(lease.run.tree_id))
        try:
            settled = await self.database.call(settle.write, recorder, outcome, entries, turns)
        except UnreadMessages:  # there is another message: any worker runs the code again
            outcome, entries = Outcome(Status.PENDING), entries[:-1]
            settled = await self.database.call(settle.write, recorder, outcome, entries, turns)
            settled.hints.append(lease.run_id)
        except (DataError, ValueError, TypeError) as error:  # no row can hold the notes or the output
            outcome = Outcome.of_error(error, lease)
            entries, turns = outcome.entries(lease), []
            settled = await self.database.call(settle.write, recorder, outcome, entries, turns)
        recorder.stream.published(entries, settled.first)
        if settled.status in TERMINAL and recorder.state.may_have_dependents:
            self.publisher.emit(*await self.database.call(republish.ended_with, lease.run, recorder.state.present()))
        if settled.status in TERMINAL and lease.run.parent_id is None:
            self.publisher.emit(frames.stream_done(recorder.stream.source, settled.status))
        if settled.status in (Status.FAILED, Status.BLOCKED):
            failures.run_ended(lease.run, lease.epoch, settled.status, outcome.error, outcome.raised)
        self._forget(lease)  # the next hint may claim it again
        if settled.status in TERMINAL and active.execution is not None:
            await active.execution.tell_end(outcome)
        self._hint_after(lease.run_id, outcome, settled)
        if outcome == Outcome(Status.PENDING) and conf.ENGINE == "celery":  # drained: the run need not wait for a sweep
            await asyncio.to_thread(hints.send_many, [lease.run_id])
        return _ended(lease.run, settled.status, outcome) if settled.status in TERMINAL else None

    async def _flushed(self, recorder: Recorder, outcome: Outcome) -> Outcome:
        """Commit late results. Before a release all of them: another process may publish right after it."""
        try:
            await recorder.flushed(unless_alone=outcome.status in TERMINAL)
        except LeaseLostError as lost:
            if not isinstance(lost.__cause__, DataError | ValueError | TypeError):
                raise
            return Outcome.of_error(lost.__cause__, recorder.lease)  # no row can hold the result
        return outcome

    def _hint_after(self, run_id: UUID, outcome: Outcome, settled: settle.Settled) -> None:
        """Hint the runs that this settlement makes claimable, now or soon."""
        for other in settled.hints:
            self.promote(other)
        if outcome.retry_in is not None:
            self.loop.call_later(outcome.retry_in, self.hint, run_id)
        elif outcome.wait_s is not None and settled.status == Status.SUSPENDED and outcome.wait_s <= NEAR_S:
            self.loop.call_later(max(0.0, outcome.wait_s), self.hint, run_id)

    async def _release_undrivable(self, lease: Lease, error: settle.NotDrivable) -> None:
        """Release a run that cannot be driven here for another worker, or block it."""
        log.warning("run %s: %s", lease.run_id, error, extra={"action": "lease.not_drivable"})
        settled, entries = await self.database.call(settle.set_aside, lease, error)
        if settled.status in (Status.FAILED, Status.BLOCKED):
            failures.run_ended(lease.run, lease.epoch, settled.status, settle.error_of(error.cause), error.cause)
        self.publisher.open(lease.run)
        source = frames.Source.of(lease.run, lease.epoch)
        for seq, entry in enumerate(entries, settled.first):
            self.publisher.emit(*frames.durable(source, entry, seq))
        if settled.status in TERMINAL and lease.run.parent_id is None:
            self.publisher.emit(frames.stream_done(source, settled.status))
        for other in settled.hints:
            self.promote(other)

    def cancel(self, active: Active, reason: str) -> None:
        if not active.recorder.state.token.cancelled:
            active.recorder.state.token.cancel(reason or "cancelled")
        active.cancel_task()

    def _set_deadline(self, active: Active, meta: RunMeta) -> asyncio.TimerHandle | None:
        if meta.deadline is None:
            return None
        remaining = (meta.deadline - active.recorder.state.present()).total_seconds()
        return self.loop.call_later(max(0.0, remaining), self.cancel, active, DEADLINE)


def _ended(run: Run, status: Status, outcome: Outcome) -> Run:
    run.status, run.output, run.error = status, outcome.output, outcome.error
    return run
