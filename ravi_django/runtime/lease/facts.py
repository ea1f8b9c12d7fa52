"""What a lease reads when it begins: the journal, unread messages, and what wakes the run.

No wake-up is lost. A waker touches the run by its id alone, and a suspension (`settle.suspend`) names the last wake-up
that it has seen. If the touch is first, the run does not suspend. If it is second, the touch makes the run pending. A
status in the waker's condition would skip a row that is being suspended at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from ravi_django.models import Ask, HumanRequest, InboxMessage, JournalEntry, Run, Signal
from ravi_django.runtime.budgets import accounts
from ravi_django.runtime.db import postgres
from ravi_django.runtime.journal.entries import Recorded, internalize
from ravi_django.runtime.journal.lease import Lease

NOT_READ: Any = object()  # in place of a payload: `payload_of` gives it
PAYLOADS = 50  # of a run's unread signals that are read with it; of thousands, the others by and by


@dataclass(slots=True)
class Facts:
    """What has happened to a run that its journal does not know yet."""

    wake_seq: int = 0  # the wake-ups that these facts include
    # unread (id, name, payload), all, oldest first; the payload may be NOT_READ
    signals: list[tuple[int, str, Any]] = field(default_factory=list)
    asks: dict[str, Ask] = field(default_factory=dict)  # of this generation, settled or not, by path
    requests: dict[tuple[str, int], HumanRequest] = field(default_factory=dict)  # by path and attempt, the latest


def load_with_facts(lease: Lease, limit: int | None = None) -> tuple[Loaded, Facts]:
    """What a lease starts from. A run that nobody has ever woken has no facts to read, and its journal says what else
    there can be: the claim's number of the wake-up is the one that these facts include at least."""
    accounts.learn()
    loaded = load(lease, limit)
    if not lease.run.wake_seq:
        return loaded, Facts()
    kinds = {row.kind for row in loaded.journal}
    return loaded, _facts(lease, lease.run.wake_seq, asks="ask" in kinds, requests="request.opened" in kinds)


def facts(lease: Lease) -> Facts:
    """Read them, the number of the wake-up first: what comes after it is known to be new."""
    seen = Run.objects.values_list("wake_seq", flat=True).get(id=lease.run_id)
    return _facts(lease, seen, asks=True, requests=True) if seen else Facts()


def _facts(lease: Lease, seen: int, *, asks: bool, requests: bool) -> Facts:
    run_id, generation = lease.run_id, lease.run.generation
    found = Facts(wake_seq=seen, signals=_unread_signals(run_id))
    if asks:
        found.asks = {ask.path: ask for ask in Ask.objects.filter(asker_id=run_id, generation=generation)}
    if requests:
        rows = HumanRequest.objects.filter(run_id=run_id, generation=generation).order_by("id")
        found.requests = {(request.path, request.attempt): request for request in rows}
    return found


def _unread_signals(run_id: UUID) -> list[tuple[int, str, Any]]:
    """All names: whether a wait is over must not depend on how many others came before."""
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None).order_by("id")
    whole = list(unread.values_list("id", "name", "payload")[:PAYLOADS])
    if len(whole) < PAYLOADS:
        return whole
    rest = unread.filter(id__gt=whole[-1][0]).values_list("id", "name")
    return whole + [(number, name, NOT_READ) for number, name in rest]


def payload_of(signal_id: int) -> Any:
    """Of a signal that was found unread."""
    return Signal.objects.values_list("payload", flat=True).get(id=signal_id)


# -------------------------------------------------------------------------------------------------- signals


_JSON = [place for place, name in enumerate(Recorded.FIELDS) if name in ("request", "digests", "result", "error")]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a lease starts from."""

    journal: list[Recorded]  # this generation, in seq order
    unread: Inbox


def load(lease: Lease, limit: int | None = None) -> Loaded:
    """The journal in one query, the inbox in another; a run's first lease has no journal to read. With a `limit` so
    many messages of a backlog, behind those that the journal has."""
    journal: list[Recorded] = []
    if lease.epoch > 1:
        journal = [Recorded(*row) for row in _rows(lease.run)]
        internalize(journal)
    return Loaded(journal, of_generation(lease.run, 0 if limit is None else _seen(journal), limit))


def _seen(journal: Iterable[Recorded]) -> int:
    """The last message that the code was given, as far as it is recorded."""
    noted = [row.result for row in journal if row.path.startswith("@") and isinstance(row.result, dict)]
    rounds = [result.get("inbox_upto") or 0 for result in noted]
    return max([row.inbox_upto or 0 for row in journal] + rounds, default=0)


def _rows(run: Run) -> Iterable[Sequence[Any]]:
    if not postgres.in_use():
        rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation)
        return rows.order_by("seq").values_list(*Recorded.FIELDS)
    names = ", ".join(Recorded.FIELDS)
    found = postgres.execute(
        f"SELECT {names} FROM ravi_journalentry"  # noqa: S608 - the names of our own columns
        " WHERE run_id = %s::uuid AND generation = %s::int ORDER BY seq",
        [str(run.id), str(run.generation)],
    )
    return (postgres.decoded(row, _JSON) for row in found)


@dataclass(frozen=True, slots=True)
class Paused:
    """A run that has given its slot away."""

    run: Run  # as it was before
    row: JournalEntry  # of its journal: it says for whom


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
        rows = _message_rows(run.id, run.inbox_from)
        found = [(number, body) for number, body, is_carried in rows if not is_carried]
        return Inbox(found, carried=next(((number, body) for number, body, is_carried in rows if is_carried), None))
    given = [
        (number, body) for number, body, is_carried in _message_rows(run.id, run.inbox_from, seen) if not is_carried
    ]
    found, more = some_after(run.id, max(run.inbox_from, seen), limit)
    return Inbox(given + found, more, carried)


def inbox_after(run_id: UUID, after: int) -> list[Numbered]:
    """The run's messages above an id, oldest first. A statement of its own, after the claim's: what was delivered while
    the claim waited for the row is there. Who delivers locks the run first, so that the ids rise with the commits."""
    return [(number, body) for number, body, is_carried in _message_rows(run_id, after) if not is_carried]


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


def _message_rows(run_id: UUID, after: int, upto: int | None = None) -> list[tuple[int, dict[str, Any], bool]]:
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
