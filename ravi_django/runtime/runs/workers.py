"""Live worker processes, the time of the last sweep, its guards for bad rows, and the runs that it has to hint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import F, Q, QuerySet

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.models import Run, SweepState, WorkerProcess
from ravi_django.runtime.db import clock
from ravi_django.runtime.lease.claims import expired, ready, skip_locked, timed

log = logging.getLogger("ravi.sweep")

T = TypeVar("T")

MISSED = 3  # heartbeats or sweeps that may be missing before a worker or the sweep counts as late


def each(fix: Callable[[Any], T], row: Any) -> T | None:
    """Call `fix` for one row; None if it fails."""
    try:
        return fix(row)
    except Exception as error:
        log.warning("the sweep left %s for the next: %s", row, error, extra={"action": "sweep.row_failed"})
        return None


def apart(fix: Callable[[list[Any]], T], rows: list[Any]) -> list[T]:
    """Call `fix` for all rows at once, and if it fails for each one alone. Returns the results."""
    try:
        return [fix(rows)]
    except Exception:
        return [result for row in rows if (result := each(lambda row: fix([row]), row)) is not None]


def worker_seen(name: str, runs: int) -> None:
    seen = {"seen_at": clock.now(), "runs": runs, "release": conf.RELEASE}
    create = {**seen, "started_at": clock.now()}
    WorkerProcess.objects.update_or_create(name=name, defaults=seen, create_defaults=create)


def worker_gone(name: str) -> None:
    WorkerProcess.objects.filter(name=name).delete()


def forget_dead_workers(older_than_s: float) -> None:
    WorkerProcess.objects.filter(seen_at__lt=clock.after(-older_than_s)).delete()


def alive() -> QuerySet[WorkerProcess]:
    return WorkerProcess.objects.filter(seen_at__gte=clock.after(-MISSED * conf.HEARTBEAT_S))


def swept() -> None:
    SweepState.objects.update_or_create(id=1, defaults={"ran_at": clock.now()})


def due_for_hint(limit: int) -> list[UUID]:
    """Claimable runs that no hint has reached, expired leases first. The next hint of each comes later, so that runs
    which no worker can claim do not fill every batch."""
    quiet = Q(hint_after__isnull=True) | Q(hint_after__lte=clock.now())
    with transaction.atomic():
        found: list[tuple[UUID, int]] = []
        for part in (expired(), timed(), ready()):
            found += skip_locked(part.filter(quiet)).values_list("id", "hints")[: limit - len(found)]
        groups: dict[int, list[UUID]] = {}
        for run_id, hints in found:
            groups.setdefault(min(hints, 6), []).append(run_id)
        for hints, ids in groups.items():
            delay = min(conf.SWEEP_S * 2**hints, 300.0)
            Run.objects.filter(id__in=ids).update(hints=F("hints") + 1, hint_after=clock.after(delay))
    return [run_id for run_id, _ in found]


def hint_failed(run_ids: Sequence[UUID]) -> None:
    """No hint was sent for these: the next sweep hints them again, whatever the backoff."""
    Run.objects.filter(id__in=run_ids, hints__gt=0).update(hints=F("hints") - 1, hint_after=None)
