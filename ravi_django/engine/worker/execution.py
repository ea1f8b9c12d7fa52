"""One run of an agent's code in a lease, and the batches of messages that the code gets: the same on every replay."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

from pydantic_core import from_json

from ravi_django.agents.current import _task_ctx, _task_run_id, _task_threads, _task_turns
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.calls.middleware import chain
from ravi_django.calls.tools import uncertain
from ravi_django.engine.db.threads import may_pass
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease import inbox as lease_inbox, paths, state
from ravi_django.engine.lease.inbox import depth_at_start, depth_in, publication_depth
from ravi_django.engine.lease.lease_state import Stop
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.worker import settle
from ravi_django.engine.worker.context import DurableContext
from ravi_django.engine.worker.settle import Outcome
from ravi_django.kernel import (
    Agent,
    AgentId,
    HandlerError,
    HookEvent,
    LeaseLostError,
    Message,
    RunMeta,
    Supervision,
    SuspendInterrupt,
)
from ravi_django.kernel.supervision import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_django.runs.teams import slots

log = logging.getLogger("ravi.engine")

_ENDS = (SuspendInterrupt, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)  # of the lease or the process


class Execution:
    """`begin` starts the code as a task, `end` waits for it."""

    def __init__(self, agent: Agent, recorder: Recorder, batches: MessageBatches) -> None:
        self.recorder = recorder
        self.meta = meta_of(recorder.lease, recorder, agent)
        self.lost = False  # another worker has the lease
        self._agent, self._batches = agent, batches
        self._ctx = DurableContext(agent, recorder, self.meta)
        self._first = recorder.lease.run.generation == 0 and recorder.journal.find("@started") is None
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        self.task = self.recorder.waits.tasks.start(self._main(), name=f"ravi-run-{self.recorder.lease.run_id}")

    async def _main(self) -> Any:
        state.current.set(self._ctx)
        _task_run_id.set(self._ctx.run_id)
        _task_turns.set([0])
        _task_threads.set({})
        _task_ctx.set(self._ctx)
        if self._first:
            await self._ctx.hook(HookEvent.RUN_START)
        try:
            return await self._batches.drive(self._agent, self._ctx, paths.Scope(tasks=self.recorder.waits.tasks))
        except (Exception, BaseExceptionGroup, *_ENDS):
            raise
        except BaseException as error:  # it would end the lease, or the event loop
            raise HandlerError(error) from error

    async def end(self) -> Outcome:
        """Wait for the code; returns how the lease ends. Raises LeaseLostError."""
        recorder, state = self.recorder, self.recorder.state
        assert self.task is not None
        try:
            returned = await self.task
            left, stop = recorder.waits.unwinding or state.mailbox.has_unread, state.stop
            if stop is not None and (stop.kind > Stop.Kind.DRAIN or left):
                return self._of_stop(stop)  # the code has swallowed the stop, or has unread messages
            recorder.waits.close()
            await self._end_children()
            recorder.journal.check_all_asked(recorder.waits.order.seqs)
            await uncertain.decide_left(self._ctx)
            value = settle.returned_by(self._ctx, returned)
            if settle.is_text(value) and self.meta.result_schema is None:
                return Outcome.of_return(self._ctx, value)
            return await recorder.database.call(Outcome.of_return, self._ctx, value)  # it may be a queryset's values
        except (Exception, BaseExceptionGroup, SuspendInterrupt, asyncio.CancelledError) as error:
            return self._outcome_of(error)
        finally:
            recorder.waits.close()
            await self._end_children()

    def _outcome_of(self, error: BaseException) -> Outcome:
        recorder, state = self.recorder, self.recorder.state
        if self.lost:
            raise LeaseLostError(recorder.lease.run_id, recorder.lease.epoch)
        if state.stop is not None and (recorder.waits.unwinding or not isinstance(error, Exception)):
            return self._of_stop(state.stop)
        if state.token.cancelled:  # also if the code has raised another error
            return Outcome.of_cancel(state.token.reason or "cancelled")
        sole = error.exceptions[0] if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1 else error
        if isinstance(sole, Exception) and may_pass(sole) and not state.last_attempt:  # from the code's own queries
            return self._of_stop(Stop(Stop.Kind.RETRY, sole))
        return Outcome.of_error(error, recorder.lease)

    def _of_stop(self, stop: Stop) -> Outcome:
        return Outcome.of_stop(stop, self.recorder, self.meta.deadline)

    async def _end_children(self) -> None:
        """End the tasks that the agent's code has left, before the lease ends."""
        state, left = self.recorder.state, [task for task in self.recorder.waits.tasks.others if not task.done()]
        for task in left:
            task.cancel()
        if left and state.stop is not None and state.stop.kind is Stop.Kind.SUSPEND:
            cut = ", ".join(sorted({str(getattr(task.get_coro(), "__qualname__", task)) for task in left}))
            message = "run %s was suspended while its code waited for something that is no call of ctx: %s"
            log.info(message, self.recorder.lease.run_id, cut, extra={"action": "run.cut"})
        while left and state.repeats and not state.gives_up:
            await asyncio.wait(left, timeout=1)  # effects that have happened are recorded first
        if left:
            await asyncio.wait(left, timeout=5)

    async def tell_end(self, outcome: Outcome) -> None:
        """Call the RUN_END hooks, after the end is written."""
        await self._ctx.hook(HookEvent.RUN_END, status=str(outcome.status), output=outcome.output, error=outcome.error)

    def cancel(self, *, lost: bool = False) -> None:
        self.lost = self.lost or lost
        if self.task is not None:
            self.task.cancel()


def meta_of(lease: Lease, recorder: Recorder, code: Agent) -> RunMeta:
    """The metadata of a run. Budgets are those of its tree and, for spawning, of its agent's `code`."""
    run = lease.run
    allowed: SpawnBudget | None = getattr(code, "spawn_budget", None)
    context = getattr(code, "context", None)
    stated = context.retention if isinstance(context, ContextConfig) else HistoryRetention.PERMANENT
    root = run.root or run
    budget = ExecutionBudget.model_validate(root.budget or {})
    limits = [run.deadline] if run.deadline else []
    if budget.deadline_s and run.started_at and run.parent_id is None:  # a child's row has the tree's
        limits.append(run.started_at + timedelta(seconds=budget.deadline_s))
    agent, keeps_turns = AgentId.parse(run.agent), run.parent_id is None or run.session.memory_of is not None
    return RunMeta(
        run_id=str(run.id),
        cancellation=recorder.state.token,
        supervision=Supervision(
            run_id=str(run.id),
            session_id=str(run.session_id),
            root_id=agent if run.root is None else AgentId.parse(run.root.agent),
            parent_id=None if run.parent is None else AgentId.parse(run.parent.agent),
            depth=run.depth,
            spawn_budget=slots.narrowed(slots.limit_of(root), slots.recorded(run.budget), allowed),
            execution_budget=budget,
            retention=stated if keeps_turns else HistoryRetention.RUN,
            priority=Priority(run.priority),
        ),
        deadline=min(limits, default=None),
        trace_id=str(run.tree_id),
        tenant_id=run.tenant or None,
        metadata=run.metadata or {},
        result_schema=from_json(run.result_schema) if run.result_schema else None,
    )


class MessageBatches:
    """Batches of messages: first those that arrived before the run began, then those until the code returned."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._mailbox = recorder.state.mailbox
        self._number = 0
        self.depth = 0  # of the first batch

    async def drive(self, agent: Agent, ctx: RunState, scope: paths.Scope) -> Any:
        """Call the agent's code for each batch; returns the result of the last call."""
        while True:
            batch = await self._next()
            ctx.messages_given += batch
            ctx.publication_depth, ctx.caused = publication_depth(batch), ""
            if self._number == 1:
                row = self._recorder.journal.find("@started")
                started = self.depth if row is None else depth_in(row.result)
                ctx.publication_depth = max(ctx.publication_depth, started)
            prefix = "" if self._number == 1 else f"r{self._number}."
            paths._scope.set(paths.Scope(prefix, tasks=scope.tasks))
            returned = await chain.run_agent(agent, ctx, batch)
            is_recorded = self._recorded_upto(self._number + 1) is not None
            if not is_recorded and not (self._mailbox.has_unread and self._recorder.state.stop is None):
                return returned

    @property
    def first_upto(self) -> int | None:
        """The last message of the first batch, in the run's first lease."""
        return self._mailbox.last or None

    def begin_behind(self, before: Any) -> None:
        """Take the depth of the generation's first lease from the row before the generation."""
        self.depth = depth_at_start([message for _, message in self._mailbox.messages], before)

    async def _next(self) -> list[Message]:
        self._number += 1
        recorder, mailbox = self._recorder, self._mailbox
        after = mailbox.read_upto or 0
        upto = self._recorded_upto(self._number)
        if upto is None:
            if self._number > 1:
                recorder.journal.check_all_asked(recorder.waits.order.seqs)
                if mailbox.more and (self.first_upto or 0) <= after:
                    with recorder.waits.busy():
                        await lease_inbox.read_on(recorder, after)
            upto = self.first_upto or 0
            if self._number > 1:
                recorder.record_with_next_once(Entry("msg.received", f"@round.{self._number}", read_upto=upto))
        return mailbox.give(upto)

    def _recorded_upto(self, number: int) -> int | None:
        row = self._recorder.journal.find("@started" if number == 1 else f"@round.{number}")
        return None if row is None else row.read_upto or 0
