"""Cancelling a run: for every surface, and by the control message of a run above it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.kernel import AgentId, ControlPayload, InvalidInputError, Message, PermanentError, RunHandle
from ravi_django.models import Run
from ravi_django.runtime import dispatch, pausing, publish, trailing
from ravi_django.runtime.addressing import filled, raise_recorded, refuse, run_id_of
from ravi_django.runtime.asks import unreachable
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.state import RunState
from ravi_django.runtime.store import control as control_rows
from ravi_django.runtime.store import slots
from ravi_django.runtime.waits import PEOPLES, check_name

log = logging.getLogger("ravi.cancel")


def cancel(run_id: UUID | str, reason: str) -> None:
    """Ask for a run's cancellation. One that nobody leases ends at once, and its stream with it; a leased one is told
    by the next heartbeat.

    Raises IllegalTransitionError when the run has ended already.
    """
    for claimable in control_rows.request_cancel(run_id, reason):
        dispatch.on_commit(claimable)
    run = Run.objects.get(id=run_id)
    if run.root_id is not None:
        pausing.resume_in(run.root_id)
    if run.is_terminal:
        transaction.on_commit(lambda: _publish_end(run), robust=True)
    else:
        transaction.on_commit(lambda: dispatch.cancel_here(run.id), robust=True)


def cancel_for(user: Any, run_id: UUID, reason: str = "") -> None:
    """`cancel` for a user who may see the run. Without a reason of theirs it names nobody: others' journals and streams
    take it over."""
    is_owner = Run.objects.filter(id=run_id, owner_id=user.pk).exists()
    cancel(run_id, reason or f"cancelled by {'its owner' if is_owner else 'an administrator'}")


def _publish_end(run: Run) -> None:
    """No worker will: without this, whoever watches would wait for the sweep."""
    try:
        if run.parent_id is None:
            publish.republish(str(run.id))
        else:
            publish.publish_ended(run, trailing.ended_with(run, run.finished_at or run.created_at))
    except Exception as error:
        log.warning("run %s: its end is not published yet: %s", run.id, error, extra={"action": "publish.failed"})


async def control(ctx: RunState, target: AgentId | RunHandle, message: Message, payload: ControlPayload) -> None:
    """Act on a run below: `abort` cancels it, `resume` lifts a pause, anything else is a signal to it."""
    effects, path, signal = ctx.effects, ctx.path(), payload.signal
    check_name(signal)
    if signal.startswith(PEOPLES):
        raise InvalidInputError(f"{signal!r} is what a person says; no agent says it in their place", field="signal")
    if not isinstance(target, RunHandle):
        raise InvalidInputError("a control message goes to a run: give its handle", field="target")
    row = await effects.recall(path, "msg.sent", str(target.agent_id), None, None)
    if row is not None:
        raise_recorded(row)
        return
    target_id, key = run_id_of(target), filled(ctx, target.agent_id, message, path, control=True)["id"]
    entry = Entry("msg.sent", path, str(target.agent_id), request={"message": key})
    async with effects.performing():
        refusal = await unreachable(ctx, target_id)
        if refusal is None and not await effects.database.call(
            control_rows.is_ancestor, effects.lease.run_id, target_id
        ):
            words = f"run {effects.lease.run_id} may not control run {target_id}: it is no ancestor of it"
            refusal = PermanentError(words)
        if refusal is not None:
            await refuse(ctx, entry, refusal)
        entry.result = {"run": str(target_id), "control": signal}
        await effects.record(
            entry, partial(control_rows.control, target_id=target_id, signal=signal, data=payload.data, key=key)
        )
    ended = signal == "abort"
    resumed = await effects.database.call(slots.resume_paused, effects.lease.run.tree_id) if ended else []
    effects.wake([target_id, *resumed])
