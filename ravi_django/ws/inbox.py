"""The rows that a socket of requests shows. These functions run on database threads and may be repeated.

`people/rights.py` decides which requests the user may see and answer. The rights are read again every few seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.conf import conf
from ravi_django.models import HumanRequest, Run
from ravi_django.runtime.people import rights as people_rights
from ravi_django.runtime.streams.shown import name_of
from ravi_django.services.request_shapes import NOT_SHOWN, RequestSerializer, mark, marked
from ravi_django.ws.access import active

PENDING = HumanRequest.Status.PENDING
KNOWN = 1000  # the newest pending requests, whose changes a socket finds without a hint


@dataclass(slots=True)
class Look:
    """The present state of some requests."""

    open: list[tuple[UUID, int, dict[str, Any]]] = field(default_factory=list)  # pending: id, version, frame
    closed: dict[UUID, dict[str, Any]] = field(default_factory=dict)  # closed, or no longer visible to this user
    pending: int | None = None  # how many requests the user may answer; None: not counted


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user, kept for a short time: reading them takes a dozen queries."""

    user: Any
    visible: QuerySet[HumanRequest]
    answerable: QuerySet[HumanRequest]


def rights(user_id: Any) -> Rights | None:
    """None for an inactive user."""
    user = active(user_id)
    if user is None:
        return None
    return Rights(
        user,
        people_rights.visible(user),
        people_rights.answerable(user).filter(people_rights.in_time(), status=PENDING),
    )


def states(mine: Rights) -> dict[UUID, tuple[int, bool]]:
    """The newest pending requests that the user may see, newest first: version, and whether the user may answer."""
    rows = mine.visible.filter(status=PENDING).order_by("-id").values_list("id", "version")[:KNOWN]
    theirs = set(mine.answerable.order_by("-id").values_list("id", flat=True)[:KNOWN])
    return {id: (version, id in theirs) for id, version in rows}


def look(mine: Rights, ids: Collection[UUID], shown: Collection[UUID], pending: int | None = None) -> Look:
    """The present state of these requests, oldest first. Requests that the user may not see are left out, or withdrawn
    if they are in `shown`. `pending` is the count of a recent look: counting thousands takes longer than all else."""
    found = Look(pending=pending)
    rows = mine.visible.filter(id__in=ids).select_related("run", "answered_by").order_by("id")
    seen = list(rows.defer(*(f"run__{name}" for name in NOT_SHOWN)))
    for row in _marked(mine, seen):
        if row.status == PENDING:
            fields = {**_of_run(row.run), **RequestSerializer(row).data}
            found.open.append((row.id, row.version, {"type": "request", **fields}))
        else:
            found.closed[row.id] = _closed(row, row.status, name_of(row))
    lost = set(ids).intersection(shown).difference(row.id for row in seen)
    if lost:
        known = {row.id: row for row in HumanRequest.objects.filter(id__in=lost).select_related("run")}
        found.closed.update({id: _closed(known.get(id), "withdrawn", None, id) for id in sorted(lost)})
    if found.open or found.closed:
        if found.pending is None:
            found.pending = mine.answerable.count()
        for frame in (*(frame for _, _, frame in found.open), *found.closed.values()):
            frame["pending"] = found.pending
    return found


def _marked(mine: Rights, rows: list[Any]) -> list[Any]:
    """As REST marks them. Without RAVI["MAY_ANSWER"] the known rights are enough."""
    if conf.MAY_ANSWER is not None:
        marked(rows, mine.user)
        return rows
    pending = [row.id for row in rows if row.status == PENDING]
    theirs = set(mine.answerable.filter(id__in=pending).values_list("id", flat=True)) if pending else set()
    for row in rows:
        mark(row, mine.user, row.id in theirs)
    return rows


def _of_run(run: Run | None) -> dict[str, Any]:
    """The run's fields in a frame, as in the streams of runs."""
    return {
        "run": run and str(run.id),
        "agent": run and run.agent,
        "parent": str(run.parent_id) if run and run.parent_id else None,
        "depth": run and run.depth,
    }


def _closed(row: HumanRequest | None, status: str, by: str | None, id: UUID | None = None) -> dict[str, Any]:
    of = _of_run(row.run if row else None)
    return {"type": "request.closed", **of, "id": str(row.id if row else id), "status": status, "answered_by": by}
