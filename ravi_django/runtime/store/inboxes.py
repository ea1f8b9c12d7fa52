"""A run's messages in their order: all that are unread, or so many of a backlog at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from ravi_django.models import InboxMessage, Run
from ravi_django.runtime.store import postgres

Numbered = tuple[int, dict[str, Any]]  # the id of its row, and the message

# The message_id of what a generation carries for the next one. A run has one at most; it is in no order with the
# others, which are given as they came.
CARRIED = "ravi:carried"
AT_ONCE = 16_384  # bytes of a backlog, as they are stored; a larger message comes alone


@dataclass(frozen=True, slots=True)
class Inbox:
    """What a lease begins with."""

    messages: list[Numbered] = field(default_factory=list)  # oldest first
    more: bool = False  # there are others behind them
    carried: Numbered | None = None  # by the generation before


def of_generation(run: Run, seen: int, limit: int | None) -> Inbox:
    """The messages above the run's `inbox_from`: all, or with a `limit` all up to `seen`, the last that its journal
    has, and so many behind it. Where a later generation was carried nothing, what it begins with may be the last of
    them: then it is given all."""
    carried = _carried(run.id) if limit is not None and run.generation else None
    if limit is None or (run.generation and carried is None):
        rows = _rows(run.id, run.inbox_from)
        found = [(number, body) for number, body, is_carried in rows if not is_carried]
        return Inbox(found, carried=next(((number, body) for number, body, is_carried in rows if is_carried), None))
    given = [(number, body) for number, body, is_carried in _rows(run.id, run.inbox_from, seen) if not is_carried]
    found, more = some_after(run.id, max(run.inbox_from, seen), limit)
    return Inbox(given + found, more, carried)


def inbox_after(run_id: UUID, after: int) -> list[Numbered]:
    """The run's messages above an id, oldest first. A statement of its own, after the claim's: what was delivered while
    the claim waited for the row is there. Who delivers locks the run first, so that the ids rise with the commits."""
    return [(number, body) for number, body, is_carried in _rows(run_id, after) if not is_carried]


def some_after(run_id: UUID, after: int, limit: int) -> tuple[list[Numbered], bool]:
    """The first of them, at most `limit` and of AT_ONCE bytes, and whether there are more."""
    if postgres.in_use():
        rows: Sequence[tuple[Any, ...]] = postgres.execute(
            "SELECT id, CASE WHEN place <= %(limit)s::int AND before < %(at_once)s::int THEN body END FROM ("
            " SELECT id, body, row_number() OVER w AS place, sum(size) OVER w - size AS before FROM ("
            "  SELECT id, body, pg_column_size(body) AS size FROM ravi_inboxmessage"
            # By run and id, though the run is one: so it is the index of both that has the order, and it gives these
            # rows alone. For an order of ids a limit may have the whole table walked by its key, or all unread sorted.
            "   WHERE run_id BETWEEN %(run)s::uuid AND %(run)s::uuid"
            "   AND (run_id, id) > (%(run)s::uuid, %(after)s::bigint) AND message_id <> %(carried)s::text"
            "   ORDER BY run_id, id LIMIT %(limit)s::int + 1"
            "  ) mine WINDOW w AS (ORDER BY id)) counted ORDER BY id",
            {
                "limit": str(limit),
                "at_once": str(AT_ONCE),
                "run": str(run_id),
                "after": str(after),
                "carried": CARRIED,
            },
        )
        found = [(number, json.loads(body)) for number, body in rows if body is not None]
        return found, len(found) < len(rows)
    unread = _unread(run_id, after).exclude(message_id=CARRIED)
    place, size, last = 0, 0, after
    for number, length in unread.values_list("id", Length("body"))[: limit + 1]:
        if place == limit or size >= AT_ONCE:
            return list(unread.filter(id__lte=last).values_list("id", "body")), True
        place, size, last = place + 1, size + length, number
    return list(unread.filter(id__lte=last).values_list("id", "body")), False


def _carried(run_id: UUID) -> Numbered | None:
    return InboxMessage.objects.filter(run_id=run_id, message_id=CARRIED).values_list("id", "body").first()


def _unread(run_id: UUID, after: int) -> QuerySet[InboxMessage]:
    return InboxMessage.objects.filter(run_id=run_id, id__gt=after).order_by("id")


def _rows(run_id: UUID, after: int, upto: int | None = None) -> list[tuple[int, dict[str, Any], bool]]:
    """Those above an id, and up to another; and whether it is the carried one."""
    if upto is not None and upto <= after:
        return []
    if postgres.in_use():
        rows = postgres.execute(
            "SELECT id, body, message_id = %s::text FROM ravi_inboxmessage"
            " WHERE run_id = %s::uuid AND id > %s::bigint AND id <= %s::bigint ORDER BY id",
            [CARRIED, str(run_id), str(after), str(_LAST if upto is None else upto)],
        )
        return [(number, json.loads(body), is_carried) for number, body, is_carried in rows]
    unread = _unread(run_id, after) if upto is None else _unread(run_id, after).filter(id__lte=upto)
    found = unread.values_list("id", "body", "message_id")
    return [(number, body, message_id == CARRIED) for number, body, message_id in found]


_LAST = 2**63 - 1  # of all ids
