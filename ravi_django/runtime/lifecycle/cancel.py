"""Cancel a run: for every surface, and for the control message of a run above it.

The writer holds no lease: it locks the run, raises its epoch and adds a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.errors import IllegalTransitionError, InvalidInputError, PermanentError
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import ControlPayload, Message
from ravi_django.models import Run, Signal
from ravi_django.runtime.journal.entries import Entry, NewTurn
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease.state import RunState
from ravi_django.runtime.lease.waits import PEOPLES, check_name
from ravi_django.runtime.lifecycle.endings import cancel_locked, concerned
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.signals import send_signal
from ravi_django.runtime.runs.waking import append_locked, locking, touch
from ravi_django.runtime.streams import republish
from ravi_django.runtime.teams import slots
from ravi_django.runtime.teams.asks import unreachable
from ravi_django.runtime.teams.messages import filled, raise_recorded, refuse, run_id_of


def cancel(run_id: UUID | str, reason: str) -> None:
    """Cancel a run. One without a lease ends at once, and its stream with it; the worker of a leased one reads it at
    the next heartbeat. Raises IllegalTransitionError when the run has ended."""
    for claimable in request_cancel(run_id, reason):
        hints.on_commit(claimable)
    run = Run.objects.get(id=run_id)
    if run.root_id is not None:
        slots.resume_in(run.root_id)
    if run.is_terminal:
        republish.on_commit(run, _publish_end)
    else:
        transaction.on_commit(lambda: hints.cancel_here(run.id), robust=True)


def cancel_for(user: Any, run_id: UUID, reason: str = "") -> None:
    """`cancel` for a user who may see the run. The default reason names nobody: others' journals and streams copy
    it."""
    is_owner = Run.objects.filter(id=run_id, owner_id=user.pk).exists()
    cancel(run_id, reason or f"cancelled by {'its owner' if is_owner else 'an administrator'}")


def _publish_end(run: Run) -> None:
    if run.parent_id is None:
        republish.republish(str(run.id))
    else:
        republish.publish_ended(run, republish.ended_with(run, run.finished_at or run.created_at))


async def control(ctx: RunState, target: AgentId | RunHandle, message: Message, payload: ControlPayload) -> None:
    """Act on a run below: `abort` cancels it, `resume` lifts a pause, any other name is a signal to it."""
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
        if refusal is None and not await effects.database.call(is_ancestor, effects.lease.run_id, target_id):
            words = f"run {effects.lease.run_id} may not control run {target_id}: it is no ancestor of it"
            refusal = PermanentError(words)
        if refusal is not None:
            await refuse(ctx, entry, refusal)
        entry.result = {"run": str(target_id), "control": signal}
        await effects.record(
            entry, partial(record_control, target_id=target_id, signal=signal, data=payload.data, key=key)
        )
    ended = signal == "abort"
    resumed = await effects.database.call(slots.resume_paused, effects.lease.run.tree_id) if ended else []
    effects.wake([target_id, *resumed])


def request_cancel(run_id: UUID | str, reason: str) -> list[UUID]:
    """Cancel a run and the runs below it: at once without a lease, else at the worker's next heartbeat. Returns the
    runs to hint. Raises IllegalTransitionError when the run has ended."""
    wanted = UUID(str(run_id))
    return locking(to_cancel(wanted), lambda held: cancel_held(wanted, reason, held))


def to_cancel(run_id: UUID) -> set[UUID]:
    """The runs to lock for the cancellation of one: its parent, which reads the outcome, and all below it."""
    parent_id = Run.objects.filter(id=run_id).values_list("parent_id", flat=True).first()
    return concerned(run_id) | ({parent_id} if parent_id is not None else set())


def cancel_held(run_id: UUID, reason: str, held: set[UUID]) -> list[UUID]:
    """`request_cancel` in a transaction that has `held` locked. Raises NotLocked too."""
    run = Run.objects.select_for_update(no_key=True).get(id=run_id)
    if run.is_terminal:
        raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
    return cancel_locked(run, reason, held)


def cancel_reason(run_id: UUID) -> str:
    """Why the run is being cancelled; empty when it is not."""
    return str(Run.objects.values_list("cancel_reason", flat=True).get(id=run_id))


def record_control(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    target_id: UUID,
    signal: str,
    data: dict[str, Any],
    key: str,
) -> int:
    """Write what a control message does to a run below: `abort` cancels it, `resume` lifts a pause if the tree has
    room, any other name is a signal. Nothing happens to a run that has ended."""

    def write(held: set[UUID]) -> None:
        with suppress(IllegalTransitionError):
            if signal == "resume":
                slots.resume_in_room(target_id)
            elif signal == "abort":
                cancel_held(target_id, f"aborted by run {lease.run_id}", held)
            else:
                send_signal(target_id, signal, data, key)
                touch([target_id])  # in this transaction, not after its commit
                Signal.objects.filter(run_id=target_id, key=key, woke=False).update(woke=True)

    needed = {"abort": to_cancel, "resume": slots.to_resume}.get(signal)
    return append_locked(lease, entries, turns, {target_id} | (needed(target_id) if needed else set()), write)


def is_ancestor(run_id: UUID, of: UUID) -> bool:
    return run_id != of and run_id in slots.above(Run.objects.get(id=of))
