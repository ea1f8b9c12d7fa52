"""A run goes on as another agent: the same run, an empty journal, one end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ravi_django.models import Ask, AskKind, JournalEntry, Run, Session
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.endings import cancel_children
from ravi_django.runtime.store.generations import CONTINUED, begin_anew
from ravi_django.runtime.store.inboxes import inbox_after
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.people import note_closed
from ravi_django.runtime.store.queue import active_root, lock_session, promote
from ravi_django.runtime.store.touching import locking

HANDOFF = "run.handoff"  # the kind of its row, and of a refusal


@dataclass(frozen=True, slots=True)
class Handoff:
    """Who takes a run over, and what it begins with."""

    path: str  # of the call that hands over
    agent: str  # the address of who takes over
    version: int | None  # of its spec; None: it is code
    messages: tuple[dict[str, Any], ...]  # the task, then those that the run was given and did not come to
    metadata: dict[str, Any]  # the run's: an agent that is a row is given its own variables
    trail: dict[str, int] = field(default_factory=dict)  # the publications behind it, see `hops`


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
        first = fence.append(lease, entries, turns)
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
