"""The end of a run's pause, for every surface. See `store/slots.py` for how one begins."""

from __future__ import annotations

from uuid import UUID

from ravi_django.db import transaction
from ravi_django.runtime import dispatch
from ravi_django.runtime.store import slots


def resume(run_id: UUID | str) -> bool:
    """Let a paused run go on, as an operator may at any time: its tree may be over its limit then, until runs end. Says
    whether it was paused."""
    resumed = slots.resume(run_id)
    for claimable in resumed:
        dispatch.on_commit(claimable)
    return bool(resumed)


def resume_in(tree_id: UUID) -> None:
    """A run of the tree has ended: once that is committed, one that gave way may go on. The sweep does the same should
    this fail."""
    transaction.on_commit(lambda: _resume_in(tree_id), robust=True)


def _resume_in(tree_id: UUID) -> None:
    for claimable in slots.resume_paused(tree_id):
        dispatch.on_commit(claimable)
