"""Rehearsals: replay a live run against the code of this process, without effects, to check it against its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from ravi_django.engine.db.threads import DatabaseThreads
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import Journal
from ravi_django.engine.lease import inbox as lease_inbox, paths, wake_state
from ravi_django.engine.lease.appender import Appender
from ravi_django.engine.lease.lease_state import LeaseState, Mailbox, Stop, Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.waits import Waits
from ravi_django.engine.lease.wake_state import WakeState
from ravi_django.engine.worker.execution import Execution, MessageBatches
from ravi_django.engine.worker.settle import error_of
from ravi_django.kernel import KernelError, Message
from ravi_django.live.streams.publisher import Publisher
from ravi_django.models import ACTIVE, Run, Status
from ravi_django.runs.catalog import specs

STALL_S = 2.0  # no effect takes time here: a recorded result that is not asked for by then will never be
BATCH = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rehearsal."""

    run_id: UUID
    agent: str
    error: dict[str, Any] | None = None  # why the run would be blocked or fail
    drift: list[str] = field(default_factory=list)  # harmless changes: model, instructions, tools


def live_runs(agent: str | None = None) -> Iterator[Run]:
    """All runs that have started and not ended, oldest first, read in batches."""
    rows = Run.objects.filter(status__in=ACTIVE, next_seq__gt=1).select_related("session", "root", "parent")
    if agent is not None:
        rows = rows.filter(agent=agent)
    return iter(rows.order_by("id").iterator(BATCH))


async def rehearse(run: Run, database: DatabaseThreads) -> Verdict:
    """Replay the run's journal to its end. Nothing is called, written or sent."""
    # The next epoch, as a real lease would have: a first lease reads no journal.
    lease = Lease(run=run, epoch=run.lease_epoch + 1, owner="")
    try:
        agent = await database.call(specs.agent_of, run)
        limit = lease_inbox.limit_of(agent)
        loaded = await database.call(wake_state.load, lease, limit)
        inbox = [(position, Message.model_validate(body)) for position, body in loaded.unread.messages]
    except (KernelError, ValueError) as error:
        return Verdict(run.id, run.agent, error_of(error))
    mailbox = Mailbox(inbox, limit=limit, more=loaded.unread.more)
    journal = Journal(loaded.journal, run.schema, stall_s=STALL_S)
    state = LeaseState(lease, journal, mailbox, WakeState(), summaries=loaded.summaries)
    waits = _RehearsalWaits(state)
    recorder = Recorder(
        waits,
        appender=Appender(database),
        publisher=cast(Publisher, SimpleNamespace(emit=lambda *frames: None)),
        run_sync=_refuse,
        wake=lambda run_ids: None,
    )
    before = asyncio.get_running_loop().get_task_factory()
    restore = paths.install(asyncio.get_running_loop()) if before is None else (lambda: None)
    try:
        execution = Execution(agent, recorder, MessageBatches(recorder))
        execution.begin()
        outcome = await execution.end()
    finally:
        restore()
    drift = [note.result["changed"] for note in recorder.pending if note.kind == "replay.drift"]
    changed = sorted({name for names in drift for name in names})
    harmless = waits.reached_the_end or outcome.status == Status.COMPLETED
    bare = error_of(outcome.raised) if outcome.raised else outcome.error  # without the ways out of a block
    return Verdict(run.id, run.agent, None if harmless else bare, changed)


class _RehearsalWaits(Waits):
    """Ends the lease at the first effect that is not recorded."""

    reached_the_end = False

    async def _may_begin(self) -> None:
        self.reached_the_end = True
        await self.park()

    async def wait(self, wait: Wait, path: str = "") -> Any:
        self.reached_the_end = True
        return await super().wait(wait)

    def stop_with(self, stop: Stop) -> None:
        if stop.kind > Stop.Kind.SUSPEND:
            self.reached_the_end = False  # it has stopped before the end
        super().stop_with(stop)


async def _refuse(*args: Any) -> Any:
    raise AssertionError("a rehearsal calls nothing")
