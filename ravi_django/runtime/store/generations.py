"""A long-lived run begins anew: the same run, an empty journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, Subquery
from django.db.models.functions import Coalesce

from ravi_django.models import Agent, InboxMessage, Run, Status, uuid7
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.endings import close_requests, note_closed
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.touching import RELEASED, locking


def continue_as_new(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    messages: Sequence[dict[str, Any]],
    inbox_upto: int,
) -> int:
    """Close the generation and give the run back with an empty journal and `messages` to begin with. Unread messages
    and signals, open children and asks come along; open requests to people are closed; sums, limits and `seq` go on. An
    agent that is a row goes on with the newest version of its spec."""
    for entry in entries[-1:]:
        note_closed(lease.run_id, entry)
    store_big_values(entries)

    def begin(held: set[UUID]) -> int:
        first = fence.append(lease, entries, turns)
        begin_anew(lease, messages, max(lease.run.inbox_from, inbox_upto), held, **_newest_version(lease.run))
        return first

    return locking({lease.run_id}, begin)


def begin_anew(
    lease: Lease, messages: Sequence[dict[str, Any]], inbox_from: int, held: set[UUID], **changes: Any
) -> None:
    """The next generation of a run that the caller's transaction has fenced, on `messages` and what its inbox has
    above `inbox_from`. Raises NotLocked."""
    Run.objects.filter(id=lease.run_id).update(
        generation=F("generation") + 1,
        inbox_from=inbox_from,
        turn_from=F("next_turn"),
        status=Status.PENDING,
        wake_at=None,
        **RELEASED,
        **changes,
    )
    close_requests(lease.run, held)
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
