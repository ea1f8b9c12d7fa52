"""The only writer of run state. Synchronous, small functions, each one transaction, all times by the database.

A worker's writes carry (run, epoch) and must match one row: zero rows raise LeaseLostError and nothing is recorded.
Who holds no lease touches a run by its id alone, under its lock. Transactions over several runs lock them in the order
of their ids, and runs before sessions. READ COMMITTED.

- `claims`, `leases`: claim, load, heartbeat
- `fence`, `journal`: effects, and the end of a lease
- `queue`: sessions, and which of their runs is active
- `waiting`, `touching`: suspending, signals, waking
- `spawning`, `slots`: children, and how many runs of a tree may live at once
- `asking`, `people`, `replies`: runs among themselves, requests to people, signals in a person's place
- `standing`: what people have decided for a whole session
- `links`: e-mails about requests, each sent once
- `generations`, `handing_over`: beginning anew, as the same agent or as another
- `retry`, `fork`: going on from a journal; `prune`: letting go of old ones
- `conversations`: turns that a run lets go of
- `accounts`, `budgets`, `topups`: what trees, users and tenants may use
- `control`, `endings`: cancellation from outside of the lease, and what the end of a run means for others
- `streams`, `processes`: event numbers, workers, and what the sweep looks for
"""

from ravi_django.runtime.store.accounts import LIMITS, accounts_of, dollars
from ravi_django.runtime.store.accounts import refresh as refresh_daily
from ravi_django.runtime.store.asking import (
    NotDue,
    control,
    deliver,
    deliver_to_agent,
    is_ancestor,
    open_ask,
    reply,
    time_out_ask,
)
from ravi_django.runtime.store.budgets import REFUSED, Amount, Exhausted, free, free_abandoned, reserve, settled
from ravi_django.runtime.store.budgets import concerns as concerns_budgets
from ravi_django.runtime.store.claims import claim, claim_many, claim_next
from ravi_django.runtime.store.control import cancel_reason, request_cancel
from ravi_django.runtime.store.conversations import clear_turns
from ravi_django.runtime.store.endings import RETENTION, TOP_UP
from ravi_django.runtime.store.escalations import due_to_escalate, escalate, reassign_request
from ravi_django.runtime.store.fence import append_statement
from ravi_django.runtime.store.fork import fork
from ravi_django.runtime.store.generations import continue_as_new
from ravi_django.runtime.store.handing_over import HANDOFF, Handoff, Occupied, hand_over, handed_over, handoffs
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
from ravi_django.runtime.store.links import (
    claim_link,
    find_unwritten,
    give_up_writing,
    is_link_expired,
    link_failed,
    make_links,
    mark_written,
    unwritten,
    use_link,
)
from ravi_django.runtime.store.people import (
    TooManyRequests,
    answer_request,
    expire_request,
    in_time,
    open_request,
    refuse_late,
    withdraw_request,
)
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
from ravi_django.runtime.store.replies import relay_signal, send_unless_asked
from ravi_django.runtime.store.retry import retry
from ravi_django.runtime.store.slots import (
    Paused,
    limit_of,
    live,
    narrowed,
    recorded,
    resume,
    resume_paused,
    trees_with_paused,
)
from ravi_django.runtime.store.spawning import make_child, spawn
from ravi_django.runtime.store.standing import NotStanding, revoke_standing, standing, use_standing
from ravi_django.runtime.store.streams import (
    mark_many_published,
    mark_published,
    raise_event_mark,
    unpublished,
    unpublished_trees,
)
from ravi_django.runtime.store.topups import answer_top_up, open_top_up, pending_top_up, suggestion
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
    "HANDOFF",
    "LIMITS",
    "REFUSED",
    "RETENTION",
    "TOP_UP",
    "Amount",
    "Exhausted",
    "Facts",
    "Handoff",
    "Lease",
    "Loaded",
    "NotDue",
    "NotStanding",
    "Occupied",
    "Paused",
    "TooManyRequests",
    "Unseen",
    "accounts_of",
    "already_appended",
    "answer_request",
    "answer_top_up",
    "append",
    "append_statement",
    "block",
    "cancel_reason",
    "claim",
    "claim_link",
    "claim_many",
    "claim_next",
    "claimable",
    "clear_turns",
    "concerns_budgets",
    "consume_signal",
    "continue_as_new",
    "control",
    "create_run",
    "create_session",
    "deliver",
    "deliver_to_agent",
    "dollars",
    "due_for_hint",
    "due_to_escalate",
    "escalate",
    "expire_request",
    "expired",
    "facts",
    "find_unwritten",
    "finish",
    "forget_dead_workers",
    "fork",
    "free",
    "free_abandoned",
    "give_up_writing",
    "hand_over",
    "handed_over",
    "handoffs",
    "has_worker",
    "heartbeat",
    "hint_failed",
    "in_time",
    "is_ancestor",
    "is_disabled",
    "is_link_expired",
    "limit_of",
    "link_failed",
    "live",
    "load",
    "load_with_facts",
    "make_child",
    "make_links",
    "mark_many_published",
    "mark_published",
    "mark_written",
    "narrowed",
    "open_ask",
    "open_request",
    "open_top_up",
    "orphaned",
    "orphans",
    "pending_top_up",
    "promote_orphan",
    "raise_event_mark",
    "ready",
    "reassign_request",
    "recorded",
    "refresh_daily",
    "refuse_late",
    "relay_signal",
    "reply",
    "request_cancel",
    "requeue",
    "reserve",
    "resume",
    "resume_paused",
    "retry",
    "revoke_standing",
    "save_blobs",
    "send_signal",
    "send_unless_asked",
    "settled",
    "silent",
    "spawn",
    "standing",
    "suggestion",
    "suspend",
    "swept",
    "time_out_ask",
    "timed",
    "touch",
    "trees_with_paused",
    "unpublished",
    "unpublished_trees",
    "unwritten",
    "use_link",
    "use_standing",
    "wake_silent",
    "withdraw_request",
    "worker_gone",
    "worker_seen",
]
