"""Permits for the runs that wait suspended for a provider: each is woken once, when its calls may be sent.

The order: priority; then owners in turn; of an owner the tree that has waited longest; of a tree the parent first. An
engine looks once a second while runs wait, and each sweep does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Case, CharField, Count, F, IntegerField, QuerySet, Sum, Value, When, Window
from django.db.models.functions import Cast, Coalesce, RowNumber

from ravi_django.calls.model import model_limits
from ravi_django.calls.model.model_limits import Limit
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.claims import skip_locked
from ravi_django.engine.lease.lease_state import PROVIDER
from ravi_django.models import ModelLimit, Run, Status
from ravi_django.runs import wake, workers

AHEAD_S = 1.5  # that a permit may be early: a woken run has to be claimed and replayed
BATCH = 200  # runs of one limit that are woken at once


def grant() -> list[UUID]:
    """Wake the runs whose turn it is, each with its permits. Returns them."""
    waiting = ModelLimit.objects.filter(waiting__gt=0).order_by("id").values_list("id", flat=True)
    return [run_id for limit_id in waiting for run_id in workers.each(_grant, limit_id) or ()]


def recount() -> None:
    """Count the waiting runs of limits that seem to have none: a process may have died before it counted one."""
    suspended = Run.objects.filter(status=Status.SUSPENDED, model_limit__isnull=False).order_by()
    for limit_id, waiting in suspended.values_list("model_limit").annotate(Count("id")):
        ModelLimit.objects.filter(id=limit_id, waiting=0).update(waiting=waiting)


def give_back(lease: Lease) -> None:
    """The call of a permit has ended, and another request may be open."""
    Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, permits__gt=0).update(permits=F("permits") - 1)


def _grant(limit_id: int) -> list[UUID]:
    with transaction.atomic():
        row = _locked(limit_id)
        if row is None:  # another process is at it
            return []
        present = clock.present()
        limit = model_limits.known().get(row.key) or Limit(row.key, row.name, row.tenant, model_limits.settings_of(row))
        limit.row = row
        room = _room(limit, row, present)
        permits: dict[UUID, int] = {}
        ordered = [*_in_order(row)[: max(0, room)]]
        free = _lock([run_id for run_id, _, _ in ordered])
        for run_id, owner, waits in ordered:
            if run_id not in free:
                continue
            if (left := room - sum(permits.values())) <= 0:
                break
            permits[run_id] = min(left, sum(wait.get("kind") == PROVIDER for wait in waits or ()) or 1)
            row.last_owner = owner
        woken = {"permits": Case(*(When(id=run_id, then=count) for run_id, count in permits.items()), default=0)}
        queue = _queue(row)
        if permits:
            queue.filter(id__in=permits).update(**woken, **wake.woken())
            number = sum(permits.values())
            model_limits.spend(limit, row, max(present, row.paused_until or present), number, number * row.mean_tokens)
        row.waiting = queue.count()
        row.save()
    return list(permits)


def _room(limit: Limit, row: ModelLimit, present: datetime) -> int:
    """Requests whose time comes within AHEAD_S, and that may be open beside the others."""
    if limit.refuses_too_long(present):
        return BATCH  # they end with RateLimited
    until = present + timedelta(seconds=AHEAD_S)
    if model_limits.is_after(row.paused_until, until):
        return 0
    room = min(model_limits.free_until(limit, row, until), BATCH)
    if limit.most("at_once"):
        woken = Run.objects.filter(model_limit=row, status__in=(Status.PENDING, Status.RUNNING))
        room = min(room, model_limits.free_at_once(limit, woken.aggregate(Sum("permits"))["permits__sum"] or 0))
    return int(room)


def _lock(run_ids: list[UUID]) -> set[UUID]:
    """Lock these runs but those that another transaction has: the limit's row must not wait for it."""
    rows = Run.objects.filter(id__in=run_ids, status=Status.SUSPENDED).order_by("id")
    return set(skip_locked(rows).values_list("id", flat=True))


def _locked(limit_id: int) -> ModelLimit | None:
    """The row, locked; None if another process has it."""
    return skip_locked(ModelLimit.objects.filter(id=limit_id)).first()


def _queue(row: ModelLimit) -> QuerySet[Run]:
    return Run.objects.filter(status=Status.SUSPENDED, model_limit=row)


def _in_order(row: ModelLimit) -> QuerySet[Run, tuple[UUID, str, list[dict[str, str]] | None]]:
    owner = Coalesce(Cast("owner", CharField()), Value(""))
    tree = Coalesce("root_id", "id")  # ids are in the order of time
    rows = _queue(row).annotate(owner_key=owner, tree_key=tree)
    within = Window(RowNumber(), partition_by=[F("priority"), F("owner_key")], order_by=["tree_key", "depth", "id"])
    is_past = Case(When(owner_key__gt=row.last_owner, then=0), default=1, output_field=IntegerField())
    ordered = rows.annotate(turn=within, is_past=is_past).order_by("-priority", "turn", "is_past", "owner_key")
    return ordered.values_list("id", "owner_key", "waiting_on")
