"""Runs of a user who was deleted: they are nobody's then, and not the system's either. Each says so by its cancel
reason, also one that has ended, so that nobody lets it go on without an owner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import Q

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import TERMINAL, Run, Session
from ravi_django.runtime.store.control import to_cancel
from ravi_django.runtime.store.endings import OWNER_DELETED


def owns_runs(user: Any) -> bool:
    return Run.objects.filter(owner=user).exists()


def disown(owner: Any, run_ids: Iterable[UUID]) -> None:
    """In the transaction that deletes their owner: take it from the runs that have ended or are being cancelled, in one
    write with the mark, before Django sets it to NULL. All runs of theirs are locked with all that the cancellation of
    `run_ids` writes, in one order: one after the other they could close a circle of waits. A retry that comes before is
    over by then, one that comes later finds the mark."""
    concerned = set().union(*map(to_cancel, run_ids))
    rows = Run.objects.select_for_update(no_key=True).filter(Q(owner=owner) | Q(id__in=concerned)).order_by("id")
    list(rows.values_list("id"))
    over = Q(status__in=TERMINAL) | Q(cancel_requested_at__isnull=False)
    Run.objects.filter(over, owner=owner).update(owner=None, cancel_reason=OWNER_DELETED)


def check_owned(run: Run) -> None:
    """Raise IllegalTransitionError for a run whose owner was deleted, or whose session is being erased."""
    if run.owner_id is None and run.cancel_reason == OWNER_DELETED:
        raise IllegalTransitionError(
            f"the owner of run {run.id} was deleted: it goes on for nobody, and not as the system's; submit its input "
            "again for somebody"
        )
    if Session.objects.filter(id=run.session_id, erasure__isnull=False).exists():
        raise IllegalTransitionError(f"the session of run {run.id} was deleted")
