"""A deleted user's runs are cancelled, and their data is marked for erasure. A deleted run takes its rows along.

A run without an owner would continue as the system's. So each run of a deleted user gets a cancel reason, also an ended
one: it cannot continue.

Django deletes the rows below a run first and the run last. Writers for a run lock its row. The deleter locks it before
the first of those rows is deleted: nothing is written after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db.models import F, Q
from django.db.models.signals import pre_delete

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import TERMINAL, JournalEntry, RaviFile, Run, Session
from ravi_django.runtime.lifecycle import erasing, erasure_rows, prune_rows
from ravi_django.runtime.lifecycle.endings import OWNER_DELETED, cancel, to_cancel
from ravi_django.runtime.runs import waking


def connect() -> None:
    """Once per process, for the user model and its proxies: the signal names the class that is deleted."""
    users = get_user_model()
    for model in apps.get_models():
        if model._meta.concrete_model is users:
            pre_delete.connect(_deleting, sender=model, dispatch_uid="ravi.owner_deleted")
    pre_delete.connect(_deleting_run, sender=Run, dispatch_uid="ravi.run_deleted")


def _deleting(sender: Any, instance: Any, **more: Any) -> None:
    """In the deleter's transaction: a rollback undoes this too."""
    _cancel(instance)
    erasure_rows.lock(instance)
    erasure_rows.lock(instance, [RaviFile])  # a message that names one needs the user's row for the commit
    # A transaction that makes a run for the user needs this row: it has committed by now, or fails. Runs are locked
    # before users everywhere.
    list(get_user_model()._base_manager.filter(pk=instance.pk).select_for_update().values_list("pk"))
    _cancel(instance)
    erasing.user_deleted(instance)


def _cancel(user: Any) -> None:
    """Cancel the live runs and mark the ended ones, which could be retried or forked. Repeated until the user owns
    none: a run may have been retried before it was locked."""
    while owns_runs(user):
        live = _live(user)
        disown(user, live)
        for run_id in live:
            with suppress(IllegalTransitionError, Run.DoesNotExist):  # it has ended or was deleted meanwhile
                cancel(run_id, OWNER_DELETED)


def _live(user: Any) -> list[UUID]:
    """The runs to cancel, roots first: the runs below a root end with it."""
    rows = Run.objects.filter(owner=user, cancel_requested_at=None).exclude(status__in=TERMINAL)
    return list(rows.order_by(F("root_id").asc(nulls_first=True), "id").values_list("id", flat=True))


def _deleting_run(sender: Any, instance: Run, **more: Any) -> None:
    waking.lock_to_delete(instance.id)
    prune_rows.keep_blocks(JournalEntry.objects.filter(run=instance))


def owns_runs(user: Any) -> bool:
    return Run.objects.filter(owner=user).exists()


def disown(owner: Any, run_ids: Iterable[UUID]) -> None:
    """In the transaction that deletes the owner: clear the owner of the runs that have ended or are being cancelled, in
    one write with the mark, before Django sets it to NULL. All runs of the owner are locked with all runs that the
    cancellation of `run_ids` writes, in one order, against deadlocks. An earlier retry has ended by then; a later one
    finds the mark."""
    concerned = set().union(*map(to_cancel, run_ids))
    rows = Run.objects.select_for_update(no_key=True).filter(Q(owner=owner) | Q(id__in=concerned)).order_by("id")
    list(rows.values_list("id"))
    over = Q(status__in=TERMINAL) | Q(cancel_requested_at__isnull=False)
    Run.objects.filter(over, owner=owner).update(owner=None, cancel_reason=OWNER_DELETED)


def check_owned(run: Run) -> None:
    """Raise IllegalTransitionError for a run whose owner was deleted, or whose session is being erased."""
    if run.owner_id is None and run.cancel_reason == OWNER_DELETED:
        raise IllegalTransitionError(
            f"the owner of run {run.id} was deleted, so it cannot continue; submit its input as another user"
        )
    if Session.objects.filter(id=run.session_id, erasure__isnull=False).exists():
        raise IllegalTransitionError(f"the session of run {run.id} was deleted")
