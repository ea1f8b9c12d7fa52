"""A user who is deleted: what runs for them is cancelled, since without an owner it would go on as the system's, and
their data is marked for the erasure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db.models import F
from django.db.models.signals import pre_delete

from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import TERMINAL, Run
from ravi_django.runtime import erasing
from ravi_django.runtime.cancel import cancel
from ravi_django.runtime.store import disowned
from ravi_django.runtime.store.endings import OWNER_DELETED


def connect() -> None:
    """At the start of the site, for the user model and its proxies: the signal names the class that is deleted by."""
    users = get_user_model()
    for model in apps.get_models():
        if model._meta.concrete_model is users:
            pre_delete.connect(_deleting, sender=model, dispatch_uid="ravi.owner_deleted")


def _deleting(sender: Any, instance: Any, **more: Any) -> None:
    """In the deleter's transaction: what it undoes, it undoes here too."""
    _cancel(instance)
    # A run that is made for the user at this moment needs this row to commit: it is here by now, or never will be.
    # Behind the runs, as with everybody who writes both.
    list(get_user_model()._base_manager.filter(pk=instance.pk).select_for_update().values_list("pk"))
    _cancel(instance)
    erasing.user_deleted(instance)


def _cancel(user: Any) -> None:
    """Those that have ended are marked: retried or forked, they would go on as well. Again, until the user owns none:
    one may have been retried before it was locked."""
    while disowned.owns_runs(user):
        live = _live(user)
        disowned.disown(user, live)
        for run_id in live:
            with suppress(IllegalTransitionError):  # it has ended with the one above it, or by itself
                cancel(run_id, OWNER_DELETED)


def _live(user: Any) -> list[UUID]:
    """The runs to cancel, those at a root first: what is below one ends with it."""
    rows = Run.objects.filter(owner=user, cancel_requested_at=None).exclude(status__in=TERMINAL)
    return list(rows.order_by(F("root_id").asc(nulls_first=True), "id").values_list("id", flat=True))
