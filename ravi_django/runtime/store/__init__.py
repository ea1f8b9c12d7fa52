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
- `follows`, `publications`: who follows a topic, and what was published to it
- `fan_out`, `followers`, `deliveries`, `delivery_rows`, `digests`: giving its followers what was published
- `sources`, `telling`: whose turn it is to be polled, and whom their items are told; `source_items`, `unread`: which
  are known, and what an ended run leaves to the next
- `told`: signals that are read with the messages which they tell of
- `control`, `endings`: cancellation from outside of the lease, and what the end of a run means for others
- `schedules`: what runs by the clock, and which of its ticks were seen to
- `streams`, `processes`: event numbers, workers, and what the sweep looks for
- `outbox`: what the event bus is to be told, in the transactions that it tells of
"""

from ravi_django.runtime.store.accounts import LIMITS, accounts_of, dollars
from ravi_django.runtime.store.accounts import refresh as refresh_daily
from ravi_django.runtime.store.asking import (
    NotDue,
    deliver,
    deliver_to_agent,
    open_ask,
    reply,
    time_out_ask,
)
from ravi_django.runtime.store.budgets import REFUSED, Amount, Exhausted, free, free_abandoned, reserve, settled
from ravi_django.runtime.store.budgets import concerns as concerns_budgets
from ravi_django.runtime.store.claims import SUSPECT, claim, claim_next, waits_as_suspect
from ravi_django.runtime.store.control import cancel_reason, control, is_ancestor, request_cancel
from ravi_django.runtime.store.conversations import clear_turns
from ravi_django.runtime.store.digests import deliver_due, has_due
from ravi_django.runtime.store.disowned import disown, owns_runs
from ravi_django.runtime.store.endings import OWNER_DELETED, RETENTION, TOP_UP
from ravi_django.runtime.store.escalations import due_to_escalate, escalate, reassign_request
from ravi_django.runtime.store.fan_out import deliver_batch, has_next, unfinished
from ravi_django.runtime.store.fence import append_statement
from ravi_django.runtime.store.follow_metadata import update_follows
from ravi_django.runtime.store.followers import Rights, Wanted
from ravi_django.runtime.store.follows import (
    add_follow,
    delete_follows,
    follow,
    follower_of,
    followers,
    remove_follow,
    unfollow,
)
from ravi_django.runtime.store.fork import fork
from ravi_django.runtime.store.generations import continue_as_new
from ravi_django.runtime.store.handing_over import HANDOFF, Handoff, Occupied, begun_by, hand_over, handoffs
from ravi_django.runtime.store.inboxes import Inbox, inbox_after, some_after
from ravi_django.runtime.store.journal import Unseen, already_appended, append, block, finish, requeue, save_blobs
from ravi_django.runtime.store.leases import (
    Lease,
    Loaded,
    abandon,
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
    count_workers,
    due_for_hint,
    forget_dead_workers,
    has_worker,
    hint_failed,
    swept,
    worker_gone,
    worker_seen,
)
from ravi_django.runtime.store.publications import create_publication, publish, scope_of
from ravi_django.runtime.store.queue import (
    create_run,
    create_session,
    is_disabled,
    orphaned,
    orphans,
    promote_orphan,
)
from ravi_django.runtime.store.replies import is_repeated, keep_key, key_of_person, relay_signal, send_unless_asked
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
from ravi_django.runtime.store.sources import (
    add_source,
    any_source_due,
    claim_sources,
    put_off,
    renew_sources,
    source_failed,
    source_polled,
)
from ravi_django.runtime.store.spawning import make_child, spawn
from ravi_django.runtime.store.standing import NotStanding, revoke_standing, standing, use_standing
from ravi_django.runtime.store.streams import (
    mark_many_published,
    mark_published,
    reserve_events,
    unpublished,
    unpublished_trees,
)
from ravi_django.runtime.store.telling import UNREAD, UNREAD_S, Told, tell, tell_unread
from ravi_django.runtime.store.told import receive, told_of
from ravi_django.runtime.store.topups import answer_top_up, open_top_up, pending_top_up, suggestion
from ravi_django.runtime.store.touching import lock_to_delete, touch
from ravi_django.runtime.store.unread import full_sources, left_unread
from ravi_django.runtime.store.waiting import (
    NOT_READ,
    Facts,
    consume_signal,
    facts,
    load_with_facts,
    payload_of,
    send_signal,
    silent,
    suspend,
    wake_silent,
)

__all__ = [
    "HANDOFF",
    "LIMITS",
    "NOT_READ",
    "OWNER_DELETED",
    "REFUSED",
    "RETENTION",
    "SUSPECT",
    "TOP_UP",
    "UNREAD",
    "UNREAD_S",
    "Amount",
    "Exhausted",
    "Facts",
    "Handoff",
    "Inbox",
    "Lease",
    "Loaded",
    "NotDue",
    "NotStanding",
    "Occupied",
    "Paused",
    "Rights",
    "Told",
    "TooManyRequests",
    "Unseen",
    "Wanted",
    "abandon",
    "accounts_of",
    "add_follow",
    "add_source",
    "already_appended",
    "answer_request",
    "answer_top_up",
    "any_source_due",
    "append",
    "append_statement",
    "begun_by",
    "block",
    "cancel_reason",
    "claim",
    "claim_link",
    "claim_next",
    "claim_sources",
    "claimable",
    "clear_turns",
    "concerns_budgets",
    "consume_signal",
    "continue_as_new",
    "control",
    "count_workers",
    "create_publication",
    "create_run",
    "create_session",
    "delete_follows",
    "deliver",
    "deliver_batch",
    "deliver_due",
    "deliver_to_agent",
    "disown",
    "dollars",
    "due_for_hint",
    "due_to_escalate",
    "escalate",
    "expire_request",
    "expired",
    "facts",
    "find_unwritten",
    "finish",
    "follow",
    "follower_of",
    "followers",
    "forget_dead_workers",
    "fork",
    "free",
    "free_abandoned",
    "full_sources",
    "give_up_writing",
    "hand_over",
    "handoffs",
    "has_due",
    "has_next",
    "has_worker",
    "heartbeat",
    "hint_failed",
    "in_time",
    "inbox_after",
    "is_ancestor",
    "is_disabled",
    "is_link_expired",
    "is_repeated",
    "keep_key",
    "key_of_person",
    "left_unread",
    "limit_of",
    "link_failed",
    "live",
    "load",
    "load_with_facts",
    "lock_to_delete",
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
    "owns_runs",
    "payload_of",
    "pending_top_up",
    "promote_orphan",
    "publish",
    "put_off",
    "ready",
    "reassign_request",
    "receive",
    "recorded",
    "refresh_daily",
    "refuse_late",
    "relay_signal",
    "remove_follow",
    "renew_sources",
    "reply",
    "request_cancel",
    "requeue",
    "reserve",
    "reserve_events",
    "resume",
    "resume_paused",
    "retry",
    "revoke_standing",
    "save_blobs",
    "scope_of",
    "send_signal",
    "send_unless_asked",
    "settled",
    "silent",
    "some_after",
    "source_failed",
    "source_polled",
    "spawn",
    "standing",
    "suggestion",
    "suspend",
    "swept",
    "tell",
    "tell_unread",
    "time_out_ask",
    "timed",
    "told_of",
    "touch",
    "trees_with_paused",
    "unfinished",
    "unfollow",
    "unpublished",
    "unpublished_trees",
    "unwritten",
    "update_follows",
    "use_link",
    "use_standing",
    "waits_as_suspect",
    "wake_silent",
    "withdraw_request",
    "worker_gone",
    "worker_seen",
]
