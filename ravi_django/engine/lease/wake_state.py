"""Reads of a lease when it begins: the journal, unread messages, and the events that wake the run.

No wake-up is lost. A waker touches the run by its id alone, and a suspension (`settle.suspend`) names the last wake-up
that it has seen. If the touch is first, the run does not suspend. If it is second, the touch makes the run pending. A
condition on the status in the waker would skip a row that is being suspended at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from ravi_django.db import transaction
from ravi_django.engine.db import postgres
from ravi_django.engine.journal.entries import COLUMNS, Recorded, internalize
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.journal.replay import is_unordered
from ravi_django.models import Ask, HumanRequest, InboxMessage, JournalEntry, Run, Signal, Turn
from ravi_django.runs.budgets import accounts

NOT_READ: Any = object()  # replaces a payload that `waits.payload_of` reads later
PERSONS = "person:"  # begins the key of a signal that a person sent, not the site's own code
REPLY = "human_reply:"  # prefix of signals that answer a question in place of a person
PEOPLES = (REPLY, "hitl:")  # prefixes of signals that carry a person's answer
PAYLOADS = 50  # of a run's unread signals that are read at once


@dataclass(slots=True)
class WakeState:
    """Events of a run that are not in its journal yet."""

    wake_seq: int = 0  # the wake-ups that it includes
    # unread (id, name, payload), all, oldest first; the payload may be NOT_READ. See `of_person`
    signals: list[tuple[int, str, Any]] = field(default_factory=list)
    broadcasts: list[tuple[int, str]] = field(default_factory=list)  # messages (id, name) that ended no wait
    asks: dict[str, Ask] = field(default_factory=dict)  # of this generation, settled or not, by path
    requests: dict[tuple[str, int], HumanRequest] = field(default_factory=dict)  # by path and attempt, the latest
    permits: tuple[int | None, int] = (None, 0)  # the row of ModelLimit that has woken the run, for so many calls
    taken_signals: set[int] = field(default_factory=set)  # that a wait of this lease has taken
    ended_by: set[int] = field(default_factory=set)  # messages that have ended a wait of this lease

    def update(self, later: WakeState) -> None:
        """Take over what was read later, without the signals that were taken meanwhile."""
        self.broadcasts = later.broadcasts
        self.signals = [signal for signal in later.signals if signal[0] not in self.taken_signals]
        self.asks, self.requests = later.asks, later.requests
        self.wake_seq = later.wake_seq

    def take_permit(self, limit_id: int | None) -> bool:
        """Whether this limit has woken the run for one more call."""
        woken_by, permits = self.permits
        if woken_by != limit_id or not permits:
            return False
        self.permits = woken_by, permits - 1
        return True

    def take_signal(self, *names: str) -> tuple[int, Any] | None:
        """Take the oldest unread signal of one of these names: no other wait gets it."""
        for index, (signal_id, signal_name, payload) in enumerate(self.signals):
            if signal_name in names:
                del self.signals[index]
                self.taken_signals.add(signal_id)
                return signal_id, payload
        return None

    def take_message(self, signal: str, read_upto: int | None) -> int | None:
        """The position of the oldest message that ends a wait for this signal, that the code was not given, and that
        ended no other wait."""
        for position, name in self.broadcasts:
            if name == signal and position > (read_upto or 0) and position not in self.ended_by:
                self.ended_by.add(position)
                return position
        return None


def load_with_wake_state(lease: Lease, limit: int | None = None) -> tuple[Loaded, WakeState]:
    """Load a lease and its wake state, with at least the wake-ups up to the claim's `wake_seq`. A run that was never
    woken has none, and its journal shows whether it has asks and requests."""
    accounts.learn()
    loaded = load(lease, limit)
    if not lease.run.wake_seq:
        return loaded, WakeState()
    kinds, unread = {row.kind for row in loaded.journal}, loaded.unread
    has_unread = unread.more or any(position > lease.run.read_upto for position, _ in unread.messages)
    asks, requests = "ask" in kinds, "request.opened" in kinds
    return loaded, _read(lease, lease.run, asks=asks, requests=requests, broadcasts=has_unread)


def is_loaded(lease: Lease) -> bool:
    """Whether the claim has read all that `load_with_wake_state` returns: then it makes no query."""
    return lease.epoch == 1 and lease.sole is not None and not lease.run.wake_seq and accounts.are_known()


def later_than(lease: Lease, known: int = -1) -> WakeState | None:
    """Read the wake state, in one transaction; None if there was no wake-up after the one numbered `known`. The number
    of the last wake-up is read first, so that later ones count as new."""
    with transaction.atomic():
        seen = Run.objects.only("wake_seq", "read_upto").get(id=lease.run_id)
        if seen.wake_seq <= known:
            return None
        return _read(lease, seen, asks=True, requests=True, broadcasts=True) if seen.wake_seq else WakeState()


def _read(lease: Lease, seen: Run, *, asks: bool, requests: bool, broadcasts: bool) -> WakeState:
    run_id, generation = lease.run_id, lease.run.generation
    # The call of a lost lease was sent.
    permits = (None, 0) if lease.expired_at else (lease.run.model_limit_id, lease.run.permits)
    read = WakeState(wake_seq=seen.wake_seq, permits=permits, signals=_unread_signals(run_id))
    if broadcasts:
        unread = InboxMessage.objects.filter(run_id=run_id, id__gt=seen.read_upto, consumed_at=None).exclude(name="")
        read.broadcasts = list(unread.order_by("id").values_list("id", "name"))
    if asks:
        read.asks = {ask.path: ask for ask in Ask.objects.filter(asker_id=run_id, generation=generation)}
    if requests:
        rows = HumanRequest.objects.filter(run_id=run_id, generation=generation).order_by("created_at", "id")
        read.requests = {(request.path, request.attempt): request for request in rows}
    return read


def of_person(name: str) -> str:
    """The name in the wake state of an answer that a person sent as a signal. No stored name has a NUL."""
    return f"\0{PERSONS}{name}"


def _name(name: str, key: str) -> str:
    return of_person(name) if key.startswith(PERSONS) and name.startswith(PEOPLES) else name


def _unread_signals(run_id: UUID) -> list[tuple[int, str, Any]]:
    """All signals by name, and the first PAYLOADS payloads: a wait must find its signal behind thousands of others."""
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None).order_by("id")
    rows = list(unread.values_list("id", "name", "key", "payload")[:PAYLOADS])
    whole = [(number, _name(name, key), payload) for number, name, key, payload in rows]
    if len(whole) < PAYLOADS:
        return whole
    rest = unread.filter(id__gt=whole[-1][0]).values_list("id", "name", "key")
    return whole + [(number, _name(name, key), NOT_READ) for number, name, key in rest]


@dataclass(frozen=True, slots=True)
class Loaded:
    journal: list[Recorded]  # this generation, in seq order
    unread: Inbox
    summaries: frozenset[int] = frozenset()  # the indexes of the run's stored summaries among its turns


def load(lease: Lease, limit: int | None = None) -> Loaded:
    """Read the journal in one query, and the inbox in another if the claim has not read it; a run's first lease has no
    journal. With a `limit` reads at most so many messages after those that the journal has."""
    journal: list[Recorded] = []
    if lease.epoch > 1:
        journal = [Recorded(*row) for row in _rows(lease.run)]
        internalize(journal)
    summaries: frozenset[int] = frozenset()
    if any(row.kind == "llm.call" and is_unordered(row.path) for row in journal):
        turns = Turn.objects.filter(session_id=lease.run.session_id, run_id=lease.run_id, keeps__isnull=False)
        indexes = turns.filter(index__gte=lease.run.turn_from).values_list("index", flat=True)
        summaries = frozenset(index for index in indexes if index is not None)
    unread = of_generation(lease.run, limit) if lease.sole is None else Inbox([lease.sole])
    return Loaded(journal, unread, summaries)


def _rows(run: Run) -> Iterable[Sequence[Any]]:
    rows = JournalEntry.objects.filter(run_id=run.id, generation=run.generation)
    return rows.order_by("seq").values_list(*COLUMNS)


_LAST = 2**63 - 1  # the highest id
Numbered = tuple[int, dict[str, Any]]  # the id of its row, and the message
AT_ONCE = 16_384  # bytes of a backlog, as they are stored; a larger message comes alone


@dataclass(frozen=True, slots=True)
class Inbox:
    messages: list[Numbered] = field(default_factory=list)  # oldest first
    more: bool = False  # there are later ones


def of_generation(run: Run, limit: int | None) -> Inbox:
    """The messages above the run's `inbox_from`: all, or with a `limit` those that the code was given and at most
    `limit` later ones."""
    if limit is None:
        return Inbox(inbox_after(run, run.inbox_from))
    read = inbox_after(run, run.inbox_from, run.read_upto)
    unread, more = some_after(run, run.read_upto, limit)
    return Inbox(read + unread, more)


def inbox_after(run: Run, after: int, upto: int = _LAST) -> list[Numbered]:
    """The run's messages above an id and up to another, oldest first. A statement after the claim's also sees the
    messages that were delivered while the claim waited for the row. A delivery locks the run first, so ids rise in
    commit order."""
    if upto <= after:
        return []
    if postgres.in_use():
        rows = postgres.execute(
            "SELECT id, message_id, body FROM ravi_inboxmessage"
            " WHERE run_id = %s::uuid AND id > %s::bigint AND id <= %s::bigint ORDER BY id",
            [str(run.id), str(after), str(upto)],
        )
        return [(number, InboxMessage.whole(run, name, json.loads(body))) for number, name, body in rows]
    return _numbered(run, _unread(run, after).filter(id__lte=upto))


def some_after(run: Run, after: int, limit: int) -> tuple[list[Numbered], bool]:
    """The first of those messages, at most `limit` and AT_ONCE bytes, and whether there are more."""
    if postgres.in_use():
        rows: Sequence[tuple[Any, ...]] = postgres.execute(
            "SELECT id, message_id, CASE WHEN place <= %(limit)s::int AND before < %(at_once)s::int THEN body END"
            " FROM ("
            " SELECT id, message_id, body, row_number() OVER w AS place, sum(size) OVER w - size AS before FROM ("
            "  SELECT id, message_id, body, pg_column_size(body) AS size FROM ravi_inboxmessage"
            # Ordered by run and id, although there is one run: the index of both then gives exactly these rows. With
            # an order by id, a limit may make the planner walk the whole table by its key, or sort all unread rows.
            "   WHERE run_id BETWEEN %(run)s::uuid AND %(run)s::uuid"
            "   AND (run_id, id) > (%(run)s::uuid, %(after)s::bigint)"
            "   ORDER BY run_id, id LIMIT %(limit)s::int + 1"
            "  ) mine WINDOW w AS (ORDER BY id)) counted ORDER BY id",
            {"limit": str(limit), "at_once": str(AT_ONCE), "run": str(run.id), "after": str(after)},
        )
        fitting = [(number, name, json.loads(body)) for number, name, body in rows if body is not None]
        messages = [(number, InboxMessage.whole(run, name, body)) for number, name, body in fitting]
        return messages, len(messages) < len(rows)
    unread = _unread(run, after)
    count, size, last = 0, 0, after
    for number, length in unread.values_list("id", Length("body"))[: limit + 1]:
        if count == limit or size >= AT_ONCE:
            return _numbered(run, unread.filter(id__lte=last)), True
        count, size, last = count + 1, size + length, number
    return _numbered(run, unread.filter(id__lte=last)), False


def _unread(run: Run, after: int) -> QuerySet[InboxMessage]:
    return InboxMessage.objects.filter(run_id=run.id, id__gt=after).order_by("id")


def _numbered(run: Run, rows: QuerySet[InboxMessage]) -> list[Numbered]:
    return [(row.id, InboxMessage.whole(run, row.message_id, row.body)) for row in rows]
