"""What an agent keeps with its follows, for the runs that deliveries start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ravi_django.db import transaction
from ravi_django.models import Follow
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease


def update_follows(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn] = (),
    *,
    followers: Sequence[str],
    metadata: Mapping[str, Any],
) -> int:
    """Record it, and put `metadata` over what every follow of these followers has. The run's row is locked before
    theirs, as wherever a follow is written."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        rows = list(Follow.objects.select_for_update(no_key=True).filter(follower__in=followers).order_by("id"))
        for row in rows:
            row.metadata = {**row.metadata, **metadata}
        Follow.objects.bulk_update(rows, ["metadata"], batch_size=500)
        return first
