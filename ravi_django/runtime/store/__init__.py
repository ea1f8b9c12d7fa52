"""The only writer of run state. Synchronous, small functions, each one transaction, all times by the database.

A worker's writes carry (run, epoch) and must match one row: zero rows raise LeaseLostError and nothing is recorded.
Who holds no lease touches a run by its id alone, under its lock. Transactions over several runs lock them in the order
of their ids, and runs before sessions. READ COMMITTED.

- `claims`, `leases`: claim, load, heartbeat
- `fence`, `journal`: effects, and the end of a lease
- `queue`: sessions, and which of their runs is active
- `control`: cancellation, from outside of the lease
- `streams`, `processes`: event numbers, workers, and what the sweep looks for
"""

from ravi_django.runtime.store.claims import claim, claim_many, claim_next
from ravi_django.runtime.store.control import request_cancel
from ravi_django.runtime.store.journal import already_appended, append, block, finish, requeue, save_blobs
from ravi_django.runtime.store.leases import (
    Lease,
    Loaded,
    claimable,
    expired,
    heartbeat,
    load,
    ready,
    timed,
)
from ravi_django.runtime.store.processes import (
    due_for_hint,
    forget_dead_workers,
    hint_failed,
    swept,
    worker_gone,
    worker_seen,
)
from ravi_django.runtime.store.queue import create_run, create_session, is_disabled, orphaned, promote_orphans
from ravi_django.runtime.store.streams import (
    mark_many_published,
    mark_published,
    raise_event_mark,
    unpublished,
    unpublished_trees,
)

__all__ = [
    "Lease",
    "Loaded",
    "already_appended",
    "append",
    "block",
    "claim",
    "claim_many",
    "claim_next",
    "claimable",
    "create_run",
    "create_session",
    "due_for_hint",
    "expired",
    "finish",
    "forget_dead_workers",
    "heartbeat",
    "hint_failed",
    "is_disabled",
    "load",
    "mark_many_published",
    "mark_published",
    "orphaned",
    "promote_orphans",
    "raise_event_mark",
    "ready",
    "request_cancel",
    "requeue",
    "save_blobs",
    "swept",
    "timed",
    "unpublished",
    "unpublished_trees",
    "worker_gone",
    "worker_seen",
]
