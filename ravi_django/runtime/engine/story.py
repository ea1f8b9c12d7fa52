"""An agent's code, run once from the top to its end, or to what stops it.

The batches of messages that an agent's code is given: one call of `run` a batch, the same on every replay.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ravi_django.agents.current import _task_ctx, _task_run_id, _task_threads, _task_turns
from ravi_django.kernel import (
    Agent,
    AgentId,
    HookEvent,
    LeaseLostError,
    Message,
    RunMeta,
    Supervision,
    SuspendInterrupt,
)
from ravi_django.kernel.supervision import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_django.runtime.db.threads import may_pass
from ravi_django.runtime.engine.context import DurableContext
from ravi_django.runtime.engine.settle import Outcome
from ravi_django.runtime.journal.entries import Entry
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease import inbox as lease_inbox
from ravi_django.runtime.lease import paths, state
from ravi_django.runtime.lease.effects import Effects
from ravi_django.runtime.lease.gate import Stop
from ravi_django.runtime.lease.inbox import hops_at_start, hops_in, hops_of
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.middleware import chain
from ravi_django.runtime.teams import slots
from ravi_django.runtime.tools import uncertain

if TYPE_CHECKING:
    from ravi_django.runtime.lease.effects import Effects


class Story:
    """`begin` starts the code as a task of its own, `end` waits for it and says how it ended."""

    def __init__(self, agent: Agent, effects: Effects, rounds: Rounds) -> None:
        self.effects = effects
        self.meta = meta_of(effects.lease, effects, getattr(agent, "spawn_budget", None))
        self.lost = False  # the lease is another worker's
        self._agent, self._rounds = agent, rounds
        self._ctx = DurableContext(agent, effects, self.meta)
        self._first = effects.lease.run.generation == 0 and effects.journal.system("@started") is None
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> asyncio.Task[Any]:
        effects = self.effects
        self.task = effects.branches.main = asyncio.create_task(self._tell(), name=f"ravi-run-{effects.lease.run_id}")
        effects.on_stuck = self.cancel
        effects.deadline = self.meta.deadline
        return self.task

    async def _tell(self) -> Any:
        state.current.set(self._ctx)
        _task_run_id.set(self._ctx.run_id)
        _task_turns.set([0])
        _task_threads.set({})
        _task_ctx.set(self._ctx)
        if self._first:
            await self._ctx.hook(HookEvent.RUN_START)
        return await self._rounds.drive(self._agent, self._ctx, paths.Scope(branches=self.effects.branches))

    async def end(self) -> Outcome:
        """How the lease ends. Raises LeaseLostError."""
        effects = self.effects
        assert self.task is not None
        try:
            returned = await self.task
            left = effects.unwinding or effects.has_unread
            if effects.stop is not None and (effects.stop.kind > Stop.Kind.DRAIN or left):
                return Outcome.of_stop(effects.stop, effects)  # swallowed by the code, or messages are left for it
            effects.close()
            await self._end_children()
            effects.journal.check_all_asked()
            await uncertain.decide_left(self._ctx)
            return Outcome.of_return(self._ctx, returned)
        except (Exception, BaseExceptionGroup, SuspendInterrupt, asyncio.CancelledError) as error:
            return self._outcome_of(error)
        finally:
            effects.close()
            await self._end_children()

    def _outcome_of(self, error: BaseException) -> Outcome:
        effects = self.effects
        if self.lost:
            raise LeaseLostError(effects.lease.run_id, effects.lease.epoch)
        if effects.stop is not None and (effects.unwinding or not isinstance(error, Exception)):
            return Outcome.of_stop(effects.stop, effects)
        if effects.token.cancelled:  # whatever the agent's code made of it
            return Outcome.of_cancel(effects.token.reason or "cancelled")
        sole = error.exceptions[0] if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1 else error
        if isinstance(sole, Exception) and may_pass(sole) and not effects.last_attempt:  # of the code's own queries
            return Outcome.of_stop(Stop(Stop.Kind.RETRY, sole), effects)
        return Outcome.of_error(error, effects.lease)

    async def _end_children(self) -> None:
        """Tasks that the agent's code left behind end with it, before the lease does."""
        left = [task for task in self.effects.branches.others if not task.done()]
        for task in left:
            task.cancel()
        while left and self.effects.repeats and not self.effects.gives_up:
            await asyncio.wait(left, timeout=1)  # what has happened is recorded first
        if left:
            await asyncio.wait(left, timeout=5)

    async def tell_end(self, outcome: Outcome) -> None:
        """To the hooks, once it is written."""
        await self._ctx.hook(HookEvent.RUN_END, status=str(outcome.status), output=outcome.output, error=outcome.error)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


def meta_of(lease: Lease, effects: Effects, allowed: SpawnBudget | None = None) -> RunMeta:
    """What the run's calls are told of it: the budgets are its tree's, `allowed` what its agent's code may spawn."""
    run = lease.run
    root = run.root or run
    budget = ExecutionBudget.model_validate(root.budget or {})
    limits = [run.deadline] if run.deadline else []
    if budget.deadline_s and run.started_at and run.parent_id is None:  # a child's row has the tree's
        limits.append(run.started_at + timedelta(seconds=budget.deadline_s))
    agent = AgentId.parse(run.agent)
    return RunMeta(
        run_id=str(run.id),
        cancellation=effects.token,
        supervision=Supervision(
            run_id=str(run.id),
            session_id=str(run.session_id),
            root_id=agent if run.root is None else AgentId.parse(run.root.agent),
            parent_id=None if run.parent is None else AgentId.parse(run.parent.agent),
            depth=run.depth,
            spawn_budget=slots.narrowed(slots.limit_of(root), slots.recorded(run), allowed),
            execution_budget=budget,
            retention=HistoryRetention.PERMANENT if run.parent_id is None else HistoryRetention.RUN,
            priority=Priority(run.priority),
        ),
        deadline=min(limits, default=None),
        trace_id=str(run.tree_id),
        tenant_id=run.tenant or None,
        metadata=run.metadata or {},
    )


class Rounds:
    """What had come when the run began is the first batch; what came until the code returned is the next."""

    def __init__(self, effects: Effects, inbox: list[tuple[int, Message]], carried: Message | None = None) -> None:
        self._effects = effects
        self._inbox = effects.inbox = inbox
        self._carried = [] if carried is None else [carried]  # before the first batch, and no part of it
        self._number = 0
        self.hops = 0  # publications behind the first batch

    async def drive(self, agent: Agent, ctx: RunState, scope: paths.Scope) -> Any:
        """Call the agent's code for every batch; returns what the last call returned."""
        while True:
            batch = await self._next()
            ctx.given += batch
            ctx.hops = hops_of(batch)
            if self._number == 1:
                row = self._effects.journal.system("@started")
                ctx.hops = max(ctx.hops, self.hops if row is None else hops_in(row.result))
                batch = [*self._carried, *batch]
            prefix = "" if self._number == 1 else f"r{self._number}."
            paths._scope.set(paths.Scope(prefix, branches=scope.branches))
            returned = await chain.run_agent(agent, ctx, batch)
            is_recorded = self._recorded_upto(self._number + 1) is not None
            if not is_recorded and not (self._effects.has_unread and self._effects.stop is None):
                return returned

    @property
    def first_upto(self) -> int | None:
        """Where the first batch ends, when this is the run's first lease."""
        return self._inbox[-1][0] if self._inbox else None

    def begin_behind(self, trail: Any) -> None:
        """Of the row that the generation begins behind: how its first lease comes to know the publications behind."""
        self.hops = hops_at_start([message for _, message in self._inbox], trail)

    async def _next(self) -> list[Message]:
        self._number += 1
        effects = self._effects
        after = effects.inbox_upto or 0
        upto = self._recorded_upto(self._number)
        if upto is None:
            if self._number > 1:
                effects.journal.check_all_asked()
                if effects.inbox_more and (self.first_upto or 0) <= after:
                    with effects.busy():
                        await lease_inbox.read_on(effects, after)
            upto = self.first_upto or 0
            if self._number > 1:
                result = {"inbox_upto": upto}
                effects.note_once(Entry("msg.received", f"@round.{self._number}", result=result))
        effects.inbox_upto = upto or None
        return [message for place, message in self._inbox if after < place <= upto]

    def _recorded_upto(self, number: int) -> int | None:
        row = self._effects.journal.system("@started" if number == 1 else f"@round.{number}")
        found: int | None = None if row is None else row.result.get("inbox_upto")
        return found
