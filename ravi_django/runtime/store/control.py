"""Changes by somebody who holds no lease: they lock the run, raise its epoch and leave a row of their own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import (
    TERMINAL,
    Run,
    Status,
)
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, journal_row
from ravi_django.runtime.store.journal import RELEASED
from ravi_django.runtime.store.queue import promote


def request_cancel(run_id: UUID | str, reason: str) -> UUID | None:
    """Ask for cancellation: at once when nobody holds the lease, else the holder is told by its next heartbeat.

    Returns the id of a run promoted by it. Raises IllegalTransitionError when the run has ended.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(id=run_id)
        if run.status in TERMINAL:
            raise IllegalTransitionError(f"run {run.id} is {run.status} already; there is nothing to cancel")
        Run.objects.filter(id=run.id).update(cancel_requested_at=clock.now(), cancel_reason=reason[:200])
        if run.status == Status.RUNNING:
            return None
        return _end_unleased(run, Status.CANCELLED, {"type": "Cancelled", "message": reason})


def _end_unleased(run: Run, status: Status, error: dict[str, Any]) -> UUID | None:
    """End a locked run that nobody leases: the epoch rises, and its row is written under the new one."""
    entry = Entry(kind=f"run.{status}", path=f"@{status}.{run.lease_epoch + 1}", error=error)
    Run.objects.filter(id=run.id).update(
        status=status,
        error=error,
        lease_epoch=F("lease_epoch") + 1,
        next_seq=F("next_seq") + 1,
        finished_at=clock.now(),
        waiting_on=None,
        **RELEASED,
    )
    journal_row(
        entry,
        run_id=run.id,
        seq=run.next_seq,
        generation=run.generation,
        epoch=run.lease_epoch + 1,
        now=clock.now(),
        start=clock.now(),
    ).save(force_insert=True)
    return promote(run) if run.status != Status.QUEUED else None
