"""Changes by somebody who holds no lease: they lock the run, raise its epoch and leave a row of their own."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import Run
from ravi_django.runtime.store.endings import cancel_locked
from ravi_django.runtime.store.touching import lock


def request_cancel(run_id: UUID | str, reason: str) -> list[UUID]:
    """Ask for the cancellation of a run and of those below it: at once for each that nobody leases, else its holder is
    told by the next heartbeat.

    Returns the runs to hint. Raises IllegalTransitionError when the run has ended.
    """
    with transaction.atomic():
        parent_id = Run.objects.values_list("parent_id", flat=True).get(id=run_id)
        if parent_id is not None:
            lock([parent_id, UUID(str(run_id))])
        run = Run.objects.select_for_update().get(id=run_id)
        if run.is_terminal:
            raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
        return cancel_locked(run, reason)


def resume(run_id: UUID | str) -> None:
    """Lift a pause; nothing happens to a run that is not paused."""
    Run.objects.filter(id=run_id).update(paused_at=None)


def cancel_reason(run_id: UUID) -> str:
    """Why somebody has asked for the run's end; empty when nobody has."""
    return str(Run.objects.values_list("cancel_reason", flat=True).get(id=run_id))
