"""Changes by somebody who holds no lease: they lock the run, raise its epoch and leave a row of their own."""

from __future__ import annotations

from uuid import UUID

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import Run
from ravi_django.runtime.store.endings import cancel_locked, concerned
from ravi_django.runtime.store.touching import locking


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
