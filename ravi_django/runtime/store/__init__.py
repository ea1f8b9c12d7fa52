"""The only writer of run state. Synchronous, small functions, each one transaction, all times by the database.

A worker's writes carry (run, epoch) and must match one row: zero rows raise LeaseLostError and nothing is recorded.
Who holds no lease touches a run by its id alone, under its lock. Transactions over several runs lock them in the order
of their ids, and runs before sessions. READ COMMITTED.

- `claims`, `leases`: claim, load, heartbeat
- `fence`, `journal`: effects, and the end of a lease
- `queue`: sessions, and which of their runs is active
- `waiting`, `touching`: suspending, signals, waking
- `asking`, `people`, `generations`: runs among themselves, requests to people, beginning anew
- `retry`, `fork`: going on from a journal; `prune`: letting go of old ones
- `conversations`: turns that a run lets go of
- `control`, `endings`: cancellation from outside of the lease, and what the end of a run means for others
- `streams`, `processes`: event numbers, workers, and what the sweep looks for
"""

from ravi_django.runtime.store.asking import (
    NotDue,
    control,
    deliver,
    deliver_to_agent,
    is_ancestor,
    make_child,
    open_ask,
    reply,
    spawn,
    time_out_ask,
)
from ravi_django.runtime.store.claims import claim, claim_many, claim_next
from ravi_django.runtime.store.control import cancel_reason, request_cancel, resume
from ravi_django.runtime.store.conversations import clear_turns
from ravi_django.runtime.store.endings import RETENTION
from ravi_django.runtime.store.fence import append_statement
from ravi_django.runtime.store.fork import fork
from ravi_django.runtime.store.generations import continue_as_new
from ravi_django.runtime.store.journal import Unseen, already_appended, append, block, finish, requeue, save_blobs
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
from ravi_django.runtime.store.people import TooManyRequests, answer_request, expire_request, open_request
from ravi_django.runtime.store.processes import (
    due_for_hint,
    forget_dead_workers,
    has_worker,
    hint_failed,
    swept,
    worker_gone,
    worker_seen,
)
from ravi_django.runtime.store.queue import (
    create_run,
    create_session,
    is_disabled,
    orphaned,
    orphans,
    promote_orphan,
)
from ravi_django.runtime.store.retry import retry
from ravi_django.runtime.store.streams import (
    mark_many_published,
    mark_published,
    raise_event_mark,
    unpublished,
    unpublished_trees,
)
from ravi_django.runtime.store.touching import touch
from ravi_django.runtime.store.waiting import (
    Facts,
    consume_signal,
    facts,
    load_with_facts,
    send_signal,
    silent,
    suspend,
    wake_silent,
)

__all__ = [
    "RETENTION",
    "Facts",
    "Lease",
    "Loaded",
    "NotDue",
    "TooManyRequests",
    "Unseen",
    "already_appended",
    "answer_request",
    "append",
    "append_statement",
    "block",
    "cancel_reason",
    "claim",
    "claim_many",
    "claim_next",
    "claimable",
    "clear_turns",
    "consume_signal",
    "continue_as_new",
    "control",
    "create_run",
    "create_session",
    "deliver",
    "deliver_to_agent",
    "due_for_hint",
    "expire_request",
    "expired",
    "facts",
    "finish",
    "forget_dead_workers",
    "fork",
    "has_worker",
    "heartbeat",
    "hint_failed",
    "is_ancestor",
    "is_disabled",
    "load",
    "load_with_facts",
    "make_child",
    "mark_many_published",
    "mark_published",
    "open_ask",
    "open_request",
    "orphaned",
    "orphans",
    "promote_orphan",
    "raise_event_mark",
    "ready",
    "reply",
    "request_cancel",
    "requeue",
    "resume",
    "retry",
    "save_blobs",
    "send_signal",
    "silent",
    "spawn",
    "suspend",
    "swept",
    "time_out_ask",
    "timed",
    "touch",
    "unpublished",
    "unpublished_trees",
    "wake_silent",
    "worker_gone",
    "worker_seen",
]
