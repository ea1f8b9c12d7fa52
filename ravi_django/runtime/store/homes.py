"""Where a follower is at home: one conversation for all that it follows, however many topics' fan-outs come to it at
the same moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet, Subquery, UUIDField

from ravi_django.models import Follow, Run, Status
from ravi_django.runtime import clock

REST_S = 300.0  # from a failure of the follower's run until it is given another


@dataclass(slots=True)
class Homes:
    """What was found of follows without a home, by their ids."""

    known: dict[UUID, UUID] = field(default_factory=dict)  # where another follow of the same follower is at home
    first: dict[UUID, UUID] = field(default_factory=dict)  # ours to give one: the follower's first follow, locked
    busy: list[UUID] = field(default_factory=list)  # somebody else may be giving them one right now


def of_homeless(ids: Sequence[UUID]) -> Homes:
    """The first follow of a follower stands for it: whoever has that row gives the follower its home. The rows of
    these follows are locked already."""
    homes = Homes()
    if not ids:
        return homes
    rows = _look(ids)
    others = sorted({first for _, _, first, _ in rows}.difference(ids))
    if others:
        locks = Follow.objects.filter(id__in=others).order_by("id").select_for_update(skip_locked=True, no_key=True)
        held = set(locks.values_list("id", flat=True)).union(ids)
        rows = _look(ids)  # what was committed until we had the lock
    else:
        held = set(ids)
    begun = set()
    for follow_id, follower, first, home_id in rows:
        if home_id is not None:
            homes.known[follow_id] = home_id
        elif first not in held or follower in begun:
            homes.busy.append(follow_id)
        else:
            begun.add(follower)
            homes.first[follow_id] = first
    return homes


def _look(ids: Sequence[UUID]) -> list[Any]:
    same = Follow.objects.filter(follower=OuterRef("follower")).order_by("id")
    rows = Follow.objects.filter(id__in=ids).annotate(
        first=Subquery(same.values("id")[:1]),
        known=Subquery(same.filter(home__isnull=False).values("home_id")[:1], output_field=UUIDField()),
    )
    return list(rows.order_by("id").values_list("id", "follower", "first", "known"))


def settle(homes: Iterable[tuple[UUID, UUID]]) -> None:
    """Note the home of followers at their first follow as well, for their other follows to find."""
    moved = [Follow(id=follow_id, home_id=session_id) for follow_id, session_id in homes]
    if moved:
        Follow.objects.bulk_update(moved, ["home_id"], batch_size=500)


def resting(homes: Iterable[UUID]) -> dict[tuple[UUID, str, Any, str], datetime]:
    """Whose last run in these homes has just failed (home, agent, owner and tenant), and until when they rest."""
    newer = Run.objects.filter(
        session_id=OuterRef("session_id"), agent=OuterRef("agent"), parent=None, id__gt=OuterRef("id")
    )
    rows: QuerySet[Any, Any] = Run.objects.filter(
        session_id__in=list(homes), parent=None, status=Status.FAILED, finished_at__gt=clock.after(-REST_S)
    )
    last: Any = rows.filter(~Exists(newer)).values_list("session_id", "agent", "owner_id", "tenant", "finished_at")
    return {row[:4]: row[4] + timedelta(seconds=REST_S) for row in last}
