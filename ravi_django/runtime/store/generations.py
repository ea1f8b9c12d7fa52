"""A long-lived run begins anew: the same run, an empty journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F

from ravi_django.models import InboxMessage, Run, Status, uuid7
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease
from ravi_django.runtime.store.touching import RELEASED


def continue_as_new(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    messages: Sequence[dict[str, Any]],
    inbox_upto: int,
) -> int:
    """Close the generation and give the run back with an empty journal and `messages` to begin with. Unread messages
    and signals, open children and asks come along; sums, limits and `seq` go on."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        Run.objects.filter(id=lease.run_id).update(
            generation=F("generation") + 1,
            inbox_from=max(lease.run.inbox_from, inbox_upto),
            turn_from=F("next_turn"),
            status=Status.PENDING,
            wake_at=None,
            **RELEASED,
        )
        InboxMessage.objects.bulk_create(
            # The body keeps its id, by which a reply finds its ask; delivered once more, the row needs one of its own.
            InboxMessage(run=lease.run, message_id=uuid7().hex, body=message)
            for message in messages
        )
        return first
