"""Waking runs, and locking several of them: what every other part of the store builds on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Value, When

from ravi_django.models import Run, Status
from ravi_django.runtime.store import postgres

T = TypeVar("T")

RELEASED: dict[str, Any] = {"lease_owner": "", "lease_expires_at": None, "for_release": ""}


def touch(run_ids: Iterable[UUID]) -> None:
    """Wake runs, whatever they do: a suspended one becomes pending, any other will not suspend unseeing."""
    for run_id in sorted(set(run_ids)):
        Run.objects.filter(id=run_id).update(**_woken())


def touch_locked(run_ids: Iterable[UUID]) -> None:
    """The same in one statement, for runs that are locked already."""
    Run.objects.filter(id__in=list(run_ids)).update(**_woken())


def _woken() -> dict[str, Any]:
    suspended = When(status=Status.SUSPENDED, then=Value(Status.PENDING.value))
    return {
        "wake_seq": F("wake_seq") + 1,
        "wake_at": Case(When(status=Status.SUSPENDED, then=None), default=F("wake_at")),
        "status": Case(suspended, default=F("status")),
        "hints": 0,
        "hint_after": None,
    }


def lock(run_ids: Iterable[UUID]) -> None:
    """Lock several runs, in the order of their ids."""
    wanted = sorted(set(run_ids))
    if len(wanted) > 1:
        list(Run.objects.select_for_update(no_key=True).filter(id__in=wanted).order_by("id").values_list("id"))


def lock_to_delete(run_id: UUID) -> None:
    """In the deleter's transaction: nobody has written for the run whom its rows do not show, and nobody will."""
    list(Run.objects.select_for_update().filter(id=run_id).values_list("id"))


def status_held(run_id: UUID | str) -> Status | None:
    """A run's status, and the run held against its deletion until the caller's transaction ends; all else that writes
    it goes on. None when there is none."""
    if postgres.in_use():
        rows = postgres.execute("SELECT status FROM ravi_run WHERE id = %s::uuid FOR KEY SHARE", [str(run_id)])
        return Status(rows[0][0]) if rows else None
    status = Run.objects.filter(id=run_id).values_list("status", flat=True).first()
    return None if status is None else Status(status)


class NotLocked(Exception):
    """A write needs these runs too, and has others locked already: taken now, they could close a circle of waits."""

    def __init__(self, run_ids: Iterable[UUID]) -> None:
        self.run_ids = set(run_ids)
        super().__init__()


def locking(run_ids: Iterable[UUID], write: Callable[[set[UUID]], T]) -> T:
    """One transaction with these runs locked; `write` is told which. Where it finds that it needs more (NotLocked),
    all is undone, the locks too, and begun again with those. Only the runs of one tree are asked for: it ends."""
    held = set(run_ids)
    while True:
        try:
            with transaction.atomic():
                lock(held)
                return write(held)
        except NotLocked as more:
            held |= more.run_ids
