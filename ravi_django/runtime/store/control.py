"""Changes by somebody who holds no lease: they lock the run, raise its epoch and leave a row of their own. And what a
run's control message does to one below it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import Run, Signal
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence, slots
from ravi_django.runtime.store.endings import cancel_locked, concerned
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.touching import locking, touch
from ravi_django.runtime.store.waiting import send_signal


def request_cancel(run_id: UUID | str, reason: str) -> list[UUID]:
    """Ask for the cancellation of a run and of those below it: at once for each that nobody leases, else its holder is
    told by the next heartbeat.

    Returns the runs to hint. Raises IllegalTransitionError when the run has ended.
    """
    wanted = UUID(str(run_id))
    return locking(to_cancel(wanted), lambda held: cancel_held(wanted, reason, held))


def to_cancel(run_id: UUID) -> set[UUID]:
    """The runs to lock for the cancellation of one: its parent, which reads the outcome, and all below it."""
    parent_id = Run.objects.values_list("parent_id", flat=True).get(id=run_id)
    return concerned(run_id) | ({parent_id} if parent_id is not None else set())


def cancel_held(run_id: UUID, reason: str, held: set[UUID]) -> list[UUID]:
    """`request_cancel` within a transaction that has `held` locked. Raises NotLocked too."""
    run = Run.objects.select_for_update(no_key=True).get(id=run_id)
    if run.is_terminal:
        raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
    return cancel_locked(run, reason, held)


def cancel_reason(run_id: UUID) -> str:
    """Why somebody has asked for the run's end; empty when nobody has."""
    return str(Run.objects.values_list("cancel_reason", flat=True).get(id=run_id))


def control(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    target_id: UUID,
    signal: str,
    data: dict[str, Any],
    key: str,
) -> int:
    """What a control message does to a run below: `abort` cancels it, `resume` lifts a pause if the tree has room,
    anything else is a signal to it. One that has ended is past all of it."""
    store_big_values(entries)

    def write(held: set[UUID]) -> int:
        first = fence.append(lease, entries, turns)
        with suppress(IllegalTransitionError):
            if signal == "resume":
                slots.resume_in_room(target_id)
            elif signal == "abort":
                cancel_held(target_id, f"aborted by run {lease.run_id}", held)
            else:
                send_signal(target_id, signal, data, key)
                touch([target_id])  # here the signal is not told after some commit, but with this one
                Signal.objects.filter(run_id=target_id, key=key, woke=False).update(woke=True)
        return first

    needed = {"abort": to_cancel, "resume": slots.to_resume}.get(signal)
    return locking({lease.run_id, target_id} | (needed(target_id) if needed else set()), write)


def is_ancestor(run_id: UUID, of: UUID) -> bool:
    found = Run.objects.select_related("parent").get(id=of)
    while found.parent_id is not None and found.parent_id != run_id:
        found = found.parent
    return found.parent_id is not None
