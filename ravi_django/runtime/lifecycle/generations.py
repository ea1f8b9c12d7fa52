"""The next generation of a run: the same run with an empty journal, continued as new or handed over to another
agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, Subquery
from django.db.models.functions import Coalesce

from ravi_django.models import Agent, Ask, AskKind, InboxMessage, JournalEntry, Run, Session, uuid7
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import append_rows, store_big_values
from ravi_django.runtime.journal.entries import Entry, NewTurn
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease.facts import CARRIED, inbox_after
from ravi_django.runtime.lease.gate import HANDOFF, Handoff
from ravi_django.runtime.lease.inbox import read, told_of
from ravi_django.runtime.lifecycle.endings import cancel_children
from ravi_django.runtime.people.rows import close_requests, note_closed
from ravi_django.runtime.runs.sessions import active_root, lock_session, promote
from ravi_django.runtime.runs.waking import RELEASED, append_locked, locking, ready

CONTINUED = "run.continued"  # the kind of its row


def continue_as_new(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    messages: Sequence[dict[str, Any]],
    inbox_upto: int,
    told: bool = False,
    drops: int | None = None,
    carries: dict[str, Any] | None = None,
) -> int:
    """Close the generation and give the run back with an empty journal and `messages` to begin with. Unread messages
    and signals, open children and asks stay; open requests to people are closed; sums, limits and `seq` continue. An
    agent that is a row continues with the newest version of its spec.

    `told`: signals may be unread whose messages were given as an inbox; mark them as read. `carries` replaces `drops`,
    the row that this generation was carried.
    """
    inbox_from = max(lease.run.inbox_from, inbox_upto)
    for entry in entries[-1:]:
        note_closed(lease.run_id, entry)

    def begin(held: set[UUID]) -> None:
        if told:
            read(told_of(lease.run_id, inbox_from))
        begin_anew(lease, messages, inbox_from, held, drops, carries, **_newest_version(lease.run))

    return append_locked(lease, entries, turns, (), begin)


def begin_anew(
    lease: Lease,
    messages: Sequence[dict[str, Any]],
    inbox_from: int,
    held: set[UUID],
    drops: int | None = None,
    carries: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Begin the next generation of a run that the caller's transaction has fenced, with `messages`, the inbox above
    `inbox_from`, and `carries`. Raises NotLocked."""
    Run.objects.filter(id=lease.run_id).update(
        generation=F("generation") + 1,
        inbox_from=inbox_from,
        turn_from=F("next_turn"),
        **ready(),
        **RELEASED,
        **changes,
    )
    close_requests(lease.run, held)
    if drops is not None:
        InboxMessage.objects.filter(id=drops, run_id=lease.run_id).delete()
    if carries is not None:
        InboxMessage.objects.create(run=lease.run, message_id=CARRIED, body=carries)
    InboxMessage.objects.bulk_create(
        # The body keeps its id, which finds the ask of a reply. The row of a second delivery needs another id.
        InboxMessage(run=lease.run, message_id=uuid7().hex, body=message)
        for message in messages
    )


def _newest_version(run: Run) -> dict[str, Any]:
    """An empty journal cannot contradict an edited spec. Without the agent's row the run keeps its version."""
    if run.agent_version is None:
        return {}
    newest = Agent.objects.filter(address=run.agent, source=Agent.Source.ADMIN).values("version")
    return {"agent_version": Coalesce(Subquery(newest), F("agent_version"))}


class Occupied(Exception):
    """The session has another active run of the agent to hand over to: nothing was written."""


def write_handoff(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    handoff: Handoff,
    inbox_upto: int,
    carried: int | None = None,
) -> tuple[int, list[UUID]]:
    """Close the generation and give the run back as the other agent's. Unread messages (after the handed-over ones) and
    signals stay, but not the `carried` message of the generation that ends; sums, limits and `seq` continue. The first
    agent's children are cancelled, its asks and requests closed. The session's next queued run of it is promoted.

    Returns the seq of the first row, and the runs to hint. Raises Occupied.
    """
    run = lease.run
    note_closed(run.id, entries[-1])
    store_big_values(entries)

    def give(held: set[UUID]) -> tuple[int, list[UUID]]:
        first = append_rows(lease, entries, turns)
        reason = f"run {run.id} was handed over to {handoff.agent}"
        hints = cancel_children(run, reason, held)
        _close_asks(run, reason)
        if run.parent_id is None:  # lock runs before sessions; now no run of either agent begins in this session
            lock_session(run)
            if _is_occupied(run, handoff.agent):
                raise Occupied
        unread, upto = _unread(run, max(run.inbox_from, inbox_upto))
        begin_anew(
            lease,
            [*handoff.messages, *unread],
            upto,
            held,
            drops=carried,
            agent=handoff.agent,
            agent_version=handoff.version,
            metadata=handoff.metadata,
            crashes=0,
            attempts=0,
        )
        Session.objects.filter(id=run.session_id).update(agent=handoff.agent, updated_at=clock.now())
        return first, [*hints, *promote(run)]

    return locking({run.id}, give)


def handoffs(run_id: UUID) -> int:
    """The number of handoffs of the run."""
    return JournalEntry.objects.filter(run_id=run_id, kind=HANDOFF, error__isnull=True).count()


def begun_by(run: Run) -> JournalEntry | None:
    """The row that the run's present generation begins after: a handoff, or one that continued as new."""
    rows = JournalEntry.objects.filter(run_id=run.id, kind__in=(HANDOFF, CONTINUED), error__isnull=True)
    return rows.order_by("-seq").first()


def _close_asks(run: Run, reason: str) -> None:
    """No code waits for their outcomes any more: a late reply is not a message to the next agent."""
    Ask.objects.filter(asker_id=run.id, outcome=None).update(
        outcome=AskKind.TARGET_CANCELLED, result={"type": "HandedOver", "message": reason}, settled_at=clock.now()
    )


def _is_occupied(run: Run, agent: str) -> bool:
    return active_root(Run(session_id=run.session_id, agent=agent)).exclude(id=run.id).exists()


def _unread(run: Run, upto: int) -> tuple[list[dict[str, Any]], int]:
    """The messages that no code was given yet, and the id of the last. A new delivery waits for the run's lock."""
    rows = inbox_after(run.id, upto)
    return [body for _, body in rows], rows[-1][0] if rows else upto
