"""Turns that a run lets go of."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import Turn
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease


def clear_turns(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    session_id: UUID | str,
    agent: str,
    run_id: UUID | str | None = None,
) -> int:
    """Forget an agent's turns in a session, or those of one run alone: what is there when the row is written, the
    turns that come with it included. Returns the seq of the first row written."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append_in_transaction(lease, entries, turns)
        found = Turn.objects.filter(session_id=session_id, agent=agent)
        (found if run_id is None else found.filter(run_id=run_id)).delete()
        return first
