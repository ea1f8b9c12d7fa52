"""What people have asked, said and decided, when it is older than RETENTION allows. `prune` has the runtime's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from ravi_django.db import transaction
from ravi_django.models import TERMINAL, AuditRecord, Follow, HumanRequest, Run, Schedule, Session, Source, Status
from ravi_django.runtime import clock
from ravi_django.runtime.store import erasures, prune

BATCH = 200


def old_sessions(older_than_s: float) -> QuerySet[Session]:
    """Conversations in which nothing has happened since then, and in which nothing is to happen."""
    cutoff = clock.after(-older_than_s)
    here = Run.objects.filter(session=OuterRef("pk"))
    going_on = here.exclude(Q(status__in=TERMINAL), finished_at__lt=cutoff)
    follows = Follow.objects.filter(Q(session=OuterRef("pk")) | Q(home=OuterRef("pk")))
    schedules, sources = Schedule.objects.filter(session=OuterRef("pk")), Source.objects.filter(home=OuterRef("pk"))
    rows = Session.objects.filter(~Exists(going_on), updated_at__lt=cutoff, parent_session=None, erasure=None)
    return rows.filter(~Exists(follows), ~Exists(schedules), ~Exists(sources)).order_by("id")


def batches_of_sessions(older_than_s: float) -> Iterator[list[UUID]]:
    last: UUID | None = None
    while True:
        rows = old_sessions(older_than_s)
        ids = list((rows if last is None else rows.filter(id__gt=last)).values_list("id", flat=True)[:BATCH])
        if not ids:
            return
        last = ids[-1]
        yield ids


def erase_runs(roots: list[UUID], older_than_s: float) -> list[UUID]:
    """Delete ended trees whole, but for their audit records; returns their roots. The journals go first, under the
    roots' locks: without those nobody brings a run back."""
    while prune.prune_trees(roots, prune.journal_rows, older_than_s, erasures.mark_bodies):
        pass
    ended = prune.still_ended(roots, older_than_s)
    erasures.erase_trees(ended, audits=False)
    return ended


def old_requests(older_than_s: float) -> QuerySet[HumanRequest]:
    """Closed ones. Those of a failed run stay: a retry opens them again."""
    rows = HumanRequest.objects.annotate(closed_at=Coalesce("answered_at", "created_at"))
    rows = rows.filter(closed_at__lt=clock.after(-older_than_s), run__status__in=(Status.COMPLETED, Status.CANCELLED))
    return rows.exclude(status=HumanRequest.Status.PENDING).order_by("pk")


def old_audits(older_than_s: float) -> QuerySet[AuditRecord]:
    return AuditRecord.objects.filter(created_at__lt=clock.after(-older_than_s)).order_by("pk")


def delete_some(rows: QuerySet[Any]) -> int:
    """At most so many as one transaction deletes; returns how many."""
    with transaction.atomic():
        ids = list(rows.values_list("pk", flat=True)[: prune.ROWS])
        rows.model._default_manager.filter(pk__in=ids).delete()
        return len(ids)
