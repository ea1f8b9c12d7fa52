"""The installation itself: which workers live, what the sweep has to hint, when it ran."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F, Q

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.models import (
    Run,
    SweepState,
    WorkerProcess,
)
from ravi_django.runtime.db import clock
from ravi_django.runtime.lease.claims import expired, ready, skip_locked, timed


def worker_seen(name: str, runs: int) -> None:
    """A worker process is alive."""
    WorkerProcess.objects.update_or_create(
        name=name,
        defaults={"seen_at": clock.now(), "runs": runs, "release": conf.RELEASE},
        create_defaults={"seen_at": clock.now(), "runs": runs, "release": conf.RELEASE, "started_at": clock.now()},
    )


def worker_gone(name: str) -> None:
    WorkerProcess.objects.filter(name=name).delete()


def forget_dead_workers(older_than_s: float) -> None:
    WorkerProcess.objects.filter(seen_at__lt=clock.after(-older_than_s)).delete()


def has_worker(release: str) -> bool:
    """Whether a process of that release has been seen lately."""
    alive = WorkerProcess.objects.filter(release=release, seen_at__gte=clock.after(-3 * conf.HEARTBEAT_S))
    return bool(alive.exists())


def count_workers() -> int:
    """How many processes have been seen lately."""
    return int(WorkerProcess.objects.filter(seen_at__gte=clock.after(-3 * conf.HEARTBEAT_S)).count())


def swept() -> None:
    """A sweep came to its end."""
    SweepState.objects.update_or_create(id=1, defaults={"ran_at": clock.now()})


def due_for_hint(limit: int) -> list[UUID]:
    """Claimable runs that no hint has reached, expired leases first; each is backed off, so that a run which nobody
    can take does not fill every batch."""
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
    """No hint went out for these: the next sweep tries again, whatever the backoff."""
    Run.objects.filter(id__in=run_ids, hints__gt=0).update(hints=F("hints") - 1, hint_after=None)
