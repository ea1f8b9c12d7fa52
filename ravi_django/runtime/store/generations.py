"""A long-lived run begins anew: the same run, an empty journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, Subquery
from django.db.models.functions import Coalesce

from ravi_django.models import Agent, InboxMessage, Run, uuid7
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.inboxes import CARRIED
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.people import close_requests, note_closed
from ravi_django.runtime.store.told import read, told_of
from ravi_django.runtime.store.touching import RELEASED, locking, ready

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
        first = fence.append(lease, entries, turns)
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
