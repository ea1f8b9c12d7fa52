"""A long-lived run begins anew: the same run, an empty journal.

A run goes on as another agent: the same run, an empty journal, one end.
"""

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
from ravi_django.runtime.runs.waking import RELEASED, locking, ready

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
    and signals, open children and asks come along; open requests to people are closed; sums, limits and `seq` go on. An
    agent that is a row goes on with the newest version of its spec. `told`: there may be signals beside messages that
    were given as an inbox; nobody else would ever read them. `carries` takes the place of the row `drops`, what the
    generation was carried itself."""
    inbox_from = max(lease.run.inbox_from, inbox_upto)
    for entry in entries[-1:]:
        note_closed(lease.run_id, entry)
    store_big_values(entries)

    def begin(held: set[UUID]) -> int:
        first = append_rows(lease, entries, turns)
        if told:
            read(told_of(lease.run_id, inbox_from))
        begin_anew(lease, messages, inbox_from, held, drops, carries, **_newest_version(lease.run))
        return first

    return locking({lease.run_id}, begin)


def begin_anew(
    lease: Lease,
    messages: Sequence[dict[str, Any]],
    inbox_from: int,
    held: set[UUID],
    drops: int | None = None,
    carries: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """The next generation of a run that the caller's transaction has fenced, on `messages` and what its inbox has
    above `inbox_from`, with what is carried for it. Raises NotLocked."""
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
        # The body keeps its id, by which a reply finds its ask; delivered once more, the row needs one of its own.
        InboxMessage(run=lease.run, message_id=uuid7().hex, body=message)
        for message in messages
    )


def _newest_version(run: Run) -> dict[str, Any]:
    """A new journal has nothing that an edited spec could contradict. A row that is gone leaves the run what it has."""
    if run.agent_version is None:
        return {}
    newest = Agent.objects.filter(address=run.agent, source=Agent.Source.ADMIN).values("version")
    return {"agent_version": Coalesce(Subquery(newest), F("agent_version"))}


class Occupied(Exception):
    """The session has another active run of the agent that is to take over: nothing was written."""


def hand_over(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    handoff: Handoff,
    inbox_upto: int,
    carried: int | None = None,
) -> tuple[int, list[UUID]]:
    """Close the generation and give the run back as the other agent's. Unread messages, behind the handed-over ones,
    and signals come along, but not what was `carried` for the one that ends; sums, limits and `seq` go on. What waited
    for that agent is over: its children are cancelled, its asks and requests closed. The session's next queued run of
    it is promoted.

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
        if run.parent_id is None:  # runs before sessions; from here on no run of either agent begins in this one
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
    """How often the run was handed over."""
    return JournalEntry.objects.filter(run_id=run_id, kind=HANDOFF, error__isnull=True).count()


def begun_by(run: Run) -> JournalEntry | None:
    """The row that the run's present generation begins behind: a handoff, or one that continued as new."""
    rows = JournalEntry.objects.filter(run_id=run.id, kind__in=(HANDOFF, CONTINUED), error__isnull=True)
    return rows.order_by("-seq").first()


def _close_asks(run: Run, reason: str) -> None:
    """Nobody waits for their outcomes any more: a reply that comes is no message to who takes over."""
    Ask.objects.filter(asker_id=run.id, outcome=None).update(
        outcome=AskKind.TARGET_CANCELLED, result={"type": "HandedOver", "message": reason}, settled_at=clock.now()
    )


def _is_occupied(run: Run, agent: str) -> bool:
    return active_root(Run(session_id=run.session_id, agent=agent)).exclude(id=run.id).exists()


def _unread(run: Run, upto: int) -> tuple[list[dict[str, Any]], int]:
    """What no code was given yet, and the number of the last of it. Who delivers more waits for the run's lock."""
    rows = inbox_after(run.id, upto)
    return [body for _, body in rows], rows[-1][0] if rows else upto
