"""Cancelling a run, for every surface."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import Run
from ravi_django.runtime import dispatch, pausing, publish, store, trailing

log = logging.getLogger("ravi.cancel")


def cancel(run_id: UUID | str, reason: str) -> None:
    """Ask for a run's cancellation. One that nobody leases ends at once, and its stream with it; a leased one is told
    by the next heartbeat.

    Raises IllegalTransitionError when the run has ended already.
    """
    for claimable in store.request_cancel(run_id, reason):
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
