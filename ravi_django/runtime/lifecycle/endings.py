"""The end of a run and of all that ends with it: the asks of it, its requests to people, and its children."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F

from ravi_django.kernel import LeaseLostError
from ravi_django.models import TERMINAL, Ask, InboxMessage, JournalEntry, Run, Status, Turn
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal import fence, outbox
from ravi_django.runtime.journal.append import store_big_values, write_row
from ravi_django.runtime.journal.entries import Entry, NewTurn
from ravi_django.runtime.journal.lease import Lease
from ravi_django.runtime.lease.effects import RETENTION
from ravi_django.runtime.lease.facts import CARRIED
from ravi_django.runtime.people.rows import close_requests, note_closed
from ravi_django.runtime.runs.sessions import pass_on, promote
from ravi_django.runtime.runs.waking import RELEASED, NotLocked, locking
from ravi_django.runtime.teams.ask_rows import settle_asks
from ravi_django.runtime.teams.slots import reached

OWNER_DELETED = "its owner was deleted"  # the cancel reason of a deleted user's runs; a mark, see `deletion.py`


class Unseen(Exception):
    """The run has a message that its code was not given: it is not complete yet."""


def finish(
    lease: Lease,
    status: Status,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    output: str | None = None,
    error: dict[str, Any] | None = None,
    inbox_upto: int | None = None,
    entangled: bool = False,
    retains: bool = True,
) -> tuple[int, list[UUID]]:
    """End the run under its lease, write the outcome for its askers, and promote the next queued run of its session.
    `entangled`: it may have children or open requests, which end with it. `retains`: all its turns stay.

    Returns the seq of the first row written, and the runs to hint. Raises Unseen when a run that would complete has a
    message above `inbox_upto`; nothing is written then.
    """
    run = lease.run
    if entangled:
        note_closed(run.id, entries[-1])
    store_big_values(entries)
    changes = {
        "status": status,
        "output": output,
        "error": error,
        "finished_at": clock.now(),
        "waiting_on": None,
        **({} if run.parent_id is None else {"paused_at": None}),
        **RELEASED,
    }

    def end(held: set[UUID]) -> tuple[int, list[UUID]]:
        woken = False
        try:
            first = fence.append_in_transaction(lease, entries, turns, seen=run.wake_seq, **changes)
        except LeaseLostError:  # or it was woken since the claim: then the second append does not raise
            first, woken = fence.append_in_transaction(lease, entries, turns, **changes), True
            if status == Status.COMPLETED and _unseen(run, inbox_upto):
                raise Unseen from None
        if not retains:
            drop_turns(run.id)
        asked = run.parent_id is not None or woken or run.wake_seq > 0
        if asked and status != Status.COMPLETED and run.parent_id is None:
            pass_on(run)
        return first, _end_with(run, status, output, error, held, asked=asked, entangled=entangled)

    return locking({run.id} if run.parent_id is None else {run.parent_id, run.id}, end)


def _unseen(run: Run, inbox_upto: int | None) -> bool:
    after = max(run.inbox_from, inbox_upto or 0)
    return InboxMessage.objects.filter(run_id=run.id, id__gt=after).exclude(message_id=CARRIED).exists()


def _end_with(
    run: Run,
    status: Status,
    output: str | None,
    error: dict[str, Any] | None,
    held: set[UUID],
    *,
    asked: bool = True,
    entangled: bool = True,
) -> list[UUID]:
    """End what needs the run: settle the asks of it, close its open requests, cancel its live children, and promote the
    next queued run of its session. Returns the runs to hint."""
    return [
        *(settle_asks(run.id, status, output, error, held) if asked else ()),
        *(close_requests(run, held) if entangled else ()),
        *(cancel_children(run, ended_reason(run.id), held) if entangled else ()),
        *(promote(run) if run.status != Status.QUEUED else ()),
    ]


def drop_turns(run_id: UUID) -> None:
    """Delete the turns that were kept for this run alone."""
    agents = JournalEntry.objects.filter(run_id=run_id, path__startswith=RETENTION).values("name")
    Turn.objects.filter(run_id=run_id, agent__in=agents).delete()


def ended_reason(run_id: UUID) -> str:
    """The cancel reason of the children of a run that has ended."""
    return f"run {run_id} has ended"


def cancel_locked(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """Cancel a locked run and what depends on it: at once, or by a mark that its worker reads."""
    said = OWNER_DELETED if run.cancel_reason == OWNER_DELETED else reason
    Run.objects.filter(id=run.id).update(cancel_requested_at=clock.now(), cancel_reason=said[:200])
    if run.status == Status.RUNNING:
        return cancel_children(run, reason, held)
    return end_unleased(run, Status.CANCELLED, {"type": "Cancelled", "message": said}, held)


def cancel_children(run: Run, reason: str, held: set[UUID]) -> list[UUID]:
    """The run is locked, and a spawn writes its parent: no child is added meanwhile."""
    live = list(Run.objects.filter(parent_id=run.id).exclude(status__in=TERMINAL).order_by("id"))
    if {child.id for child in live} - held:
        raise NotLocked(concerned(run.id))
    return [woken for child in live for woken in cancel_locked(child, reason, held)]


def concerned(run_id: UUID) -> set[UUID]:
    """The live runs at and below a run, and the runs that ask one of them: its cancellation writes these."""

    def below(edge: set[UUID]) -> Iterable[UUID]:
        return Run.objects.filter(parent_id__in=edge).exclude(status__in=TERMINAL).values_list("id", flat=True)

    found = reached({run_id}, below)
    return found | set(Ask.objects.filter(target_id__in=found, outcome=None).values_list("asker_id", flat=True))


def end_unleased(run: Run, status: Status, error: dict[str, Any], held: set[UUID]) -> list[UUID]:
    """End a locked run without a lease: the epoch rises, and its row is written under the new one."""
    entry = Entry(kind=f"run.{status}", path=f"@{status}.{run.lease_epoch + 1}", error=error)
    note_closed(run.id, entry)
    Run.objects.filter(id=run.id).update(
        status=status,
        error=error,
        lease_epoch=F("lease_epoch") + 1,
        next_seq=F("next_seq") + 1,
        finished_at=clock.now(),
        waiting_on=None,
        paused_at=None,
        **RELEASED,
    )
    write_row(run, entry, run.lease_epoch + 1)
    outbox.write(outbox.of_entries(run, [entry]))
    drop_turns(run.id)
    if run.parent_id is None and error["message"] != OWNER_DELETED:
        pass_on(run)
    return _end_with(run, status, None, error, held)
