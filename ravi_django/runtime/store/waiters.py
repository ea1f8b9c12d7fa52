"""Who waits for whom, over any number of open asks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from ravi_django.models import TERMINAL, Ask, Run


def awaited(run_id: UUID) -> dict[UUID, datetime | None]:
    """The runs that this one waits for, and since when each of them is paused."""
    reached: dict[UUID, datetime | None] = {}
    edge = {run_id}
    while edge:
        asked = Ask.objects.filter(asker_id__in=edge, outcome=None).exclude(asker__status__in=TERMINAL)
        found = dict(asked.values_list("target_id", "target__paused_at"))
        edge = found.keys() - reached.keys()
        reached |= found
    return reached


def waiters(run_id: UUID) -> set[UUID]:
    """The runs that wait for this one."""
    reached: set[UUID] = set()
    edge = {run_id}
    while edge:
        asking = Ask.objects.filter(target_id__in=edge, outcome=None).exclude(asker__status__in=TERMINAL)
        edge = set(asking.values_list("asker_id", flat=True)) - reached
        reached |= edge
    return reached


def above(run: Run) -> set[UUID]:
    """The run itself and its ancestors."""
    found, at = {run.id}, run.parent_id
    while at is not None:
        found.add(at)
        at = Run.objects.values_list("parent_id", flat=True).get(id=at)
    return found


def is_needed(run: Run, also: Iterable[UUID] = ()) -> bool:
    """Whether somebody else than those above it waits for it, or one of `also` that are about to."""
    waiting = waiters(run.id) | set(also)
    return bool(waiting) and not waiting <= above(run)
