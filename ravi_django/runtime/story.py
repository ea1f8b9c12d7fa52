"""An agent's code, run once from the top to its end, or to what stops it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ravi_django.agents._task import _task_ctx, _task_run_id, _task_threads, _task_turns
from ravi_django.kernel import Agent, AgentId, HookEvent, LeaseLostError, RunMeta, Supervision, SuspendInterrupt
from ravi_django.kernel.supervision import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_django.runtime import paths, state, tool_uncertain
from ravi_django.runtime.context import DurableContext
from ravi_django.runtime.database import may_pass
from ravi_django.runtime.effects import Effects
from ravi_django.runtime.gate import Stop
from ravi_django.runtime.rounds import Rounds
from ravi_django.runtime.settle import Outcome
from ravi_django.runtime.store import slots
from ravi_django.runtime.store.leases import Lease


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
            await tool_uncertain.decide_left(self._ctx)
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
