"""Delete old rows, in bounded batches. Runs, their outputs and their sessions' turns stay longer than journals.

Each batch of ended trees is a transaction under the roots' locks: a retry or a fork comes before it or after it. A
journal is deleted from its end. A run whose journal has lost its last row is pruned: it can be neither retried nor
forked, even if the prune was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, UUIDField, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce

from ravi_django.db import lock_rows, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import BLOB_KEY
from ravi_django.engine.lease.lease_state import HANDOFF
from ravi_django.models.audit import AuditRecord
from ravi_django.models.journal import Blob, InboxMessage, JournalEntry
from ravi_django.models.people import HumanRequest
from ravi_django.models.run import TERMINAL, Ask, Run, Signal, Status
from ravi_django.models.schedules import Schedule
from ravi_django.models.session import Session, Turn
from ravi_django.models.site import StreamArchive, StreamFrame, Ticket
from ravi_django.models.social import FeedItem, Follow, Publication
from ravi_django.models.sources import Source
from ravi_django.runs.lifecycle.copies import fill_turns
from ravi_django.runs.lifecycle.generations import CONTINUED

TREES = 200  # keys in one batch
ROWS = 5_000  # deleted in one transaction, at most
BLOB_AGE_S = 24 * 3600.0  # a body is stored before its row, and processes remember stored bodies for hours


def is_pruned(run: Run) -> bool:
    """Whether the journal has lost its end."""
    return run.next_seq > 1 and not JournalEntry.objects.filter(run_id=run.id, seq=run.next_seq - 1).exists()


def batches(rows: QuerySet[Any]) -> Iterator[list[Any]]:
    """The keys of these rows, in order. One query a batch; each begins behind the batch before."""
    ordered, last = rows.order_by("pk").values_list("pk", flat=True), None
    while keys := list((ordered if last is None else ordered.filter(pk__gt=last))[:TREES]):
        last = keys[-1]
        yield keys


def ended_trees(older_than_s: float) -> Iterator[list[UUID]]:
    """Roots of trees that ended longer ago than that, in batches."""
    for ids in batches(Run.objects.filter(_ended(older_than_s), parent=None)):
        if wholly := without_live(ids):
            yield wholly


def _ended(older_than_s: float) -> Q:
    return Q(status__in=TERMINAL, finished_at__lt=clock.after(-older_than_s))


def without_live(roots: Sequence[UUID]) -> list[UUID]:
    """The roots without a live run below. A query of its own: as a subquery it would read all runs each time."""
    live = Run.objects.filter(root_id__in=roots).exclude(status__in=TERMINAL).values_list("root_id", flat=True)
    lively = set(live.order_by())
    return [root for root in roots if root not in lively]


Rows = Callable[[Sequence[UUID]], QuerySet[Any]]


def journal_rows(roots: Sequence[UUID]) -> QuerySet[JournalEntry]:
    return JournalEntry.objects.filter(run_id__in=_tree(roots)).order_by("run_id", "-seq")


def consumed_signals(roots: Sequence[UUID]) -> QuerySet[Signal]:
    return Signal.objects.filter(run_id__in=_tree(roots), consumed_at__isnull=False)


def settled_asks(roots: Sequence[UUID]) -> QuerySet[Ask]:
    return Ask.objects.filter(asker_id__in=_tree(roots), outcome__isnull=False)


def messages(roots: Sequence[UUID]) -> QuerySet[InboxMessage]:
    """Delete them after the journals: until then a retry or a fork reads them."""
    return _behind_the_first(InboxMessage.objects.filter(run_id__in=_tree(roots)))


def _behind_the_first(rows: QuerySet[InboxMessage]) -> QuerySet[InboxMessage]:
    """Without each run's first message: its input stays with the run."""
    return rows.filter(Exists(InboxMessage.objects.filter(run_id=OuterRef("run_id"), id__lt=OuterRef("id"))))


def frames(roots: Sequence[UUID]) -> QuerySet[StreamFrame]:
    """All frames of a pruned tree, else all but the last: a retry continues its numbers."""
    later = StreamFrame.objects.filter(tree_id=OuterRef("tree_id"), seq__gt=OuterRef("seq"))
    end = JournalEntry.objects.filter(run_id=OuterRef("tree_id"), seq=OuterRef("tree__next_seq") - 1)
    return StreamFrame.objects.filter(Exists(later) | ~Exists(end), tree_id__in=roots).order_by("tree_id", "seq")


def archives(roots: Sequence[UUID]) -> QuerySet[StreamArchive]:
    return StreamArchive.objects.filter(tree_id__in=roots)


def _tree(roots: Sequence[UUID]) -> list[UUID]:
    return [*roots, *Run.objects.filter(root_id__in=roots).values_list("id", flat=True)]


def prune_trees(
    roots: Sequence[UUID], rows: Rows, older_than_s: float, before: Callable[[QuerySet[Any]], None] = lambda _: None
) -> int:
    """Delete at most ROWS of these rows, of trees that are still ended; returns how many. Call it until that is 0.
    `before` is called with the rows, in the same transaction."""
    if not rows(roots).exists():  # most trees were pruned before: they are not locked for nothing
        return 0
    with transaction.atomic():
        if not (held := _hold(roots, older_than_s)):
            return 0
        some = first_of(rows(held))
        before(some)
        return delete_rows(some)


def _hold(roots: Sequence[UUID], older_than_s: float) -> list[UUID]:
    """Lock the roots, in the order of their ids, and leave out trees that live again: a retry locks the run."""
    locked = Run.objects.select_for_update().filter(id__in=roots).order_by("id")
    return still_ended(list(locked.values_list("id", flat=True)), older_than_s)


def still_ended(roots: Sequence[UUID], older_than_s: float) -> list[UUID]:
    return without_live(list(Run.objects.filter(_ended(older_than_s), id__in=roots).values_list("id", flat=True)))


def not_ended(run_ids: Sequence[UUID], older_than_s: float) -> list[UUID]:
    """The runs that are in none of the `ended_trees`."""
    pairs = Run.objects.filter(id__in=run_ids).values_list("id", "root_id")
    trees = {run_id: root_id or run_id for run_id, root_id in pairs}
    roots = Run.objects.filter(_ended(older_than_s), id__in=set(trees.values())).values_list("id", flat=True)
    ended = set(without_live(list(roots)))
    return [run_id for run_id, root_id in trees.items() if root_id not in ended]


def old_generations(run_ids: Sequence[UUID], older_than_s: float) -> QuerySet[JournalEntry]:
    """Rows that no replay reads any more. The row that began the present generation stays: its first lease reads it."""
    rows = JournalEntry.objects.filter(
        run_id__in=run_ids, generation__lt=F("run__generation"), finished_at__lt=clock.after(-older_than_s)
    )
    return rows.exclude(kind__in=(CONTINUED, HANDOFF), generation=F("run__generation") - 1)


def past_signals(run_ids: Sequence[UUID], older_than_s: float) -> QuerySet[Signal]:
    """Signals that were read that long ago and have woken their run. The journal has their payloads."""
    return Signal.objects.filter(run_id__in=run_ids, consumed_at__lt=clock.after(-older_than_s), woke=True)


def past_messages(run_ids: Sequence[UUID], older_than_s: float) -> QuerySet[InboxMessage]:
    """Messages of earlier generations. A message stays while the same publication may be delivered again through
    another follow: the row shows that the run has had it."""
    id_of = When(message_id__regex="^[0-9a-f]{32}$", then=Cast("message_id", UUIDField()))
    rows = InboxMessage.objects.filter(
        run_id__in=run_ids, id__lte=F("run__inbox_from"), created_at__lt=clock.after(-older_than_s)
    ).annotate(publication=Case(id_of))
    under_way = Publication.objects.filter(id=OuterRef("publication"), done_at=None)
    waiting = FeedItem.objects.filter(
        Q(follow__owner=OuterRef("run__owner")) | Q(follow__owner=None),
        publication_id=OuterRef("publication"),
        follow__agent=OuterRef("run__agent"),
        follow__tenant=OuterRef("run__tenant"),
    )
    return _behind_the_first(rows).filter(~Exists(under_way), ~Exists(waiting))


Past = Callable[[Sequence[UUID], float], QuerySet[Any]]


def unreferenced_blobs() -> set[str]:
    """Bodies that no row names, older than a day. One pass over the journal."""
    old = Blob.objects.filter(created_at__lt=clock.after(-BLOB_AGE_S))
    return without_referenced(set(old.values_list("id", flat=True).iterator()))


def without_referenced(left: set[str]) -> set[str]:
    """The bodies of these that no row names."""
    if left:
        for named in _references():
            left.difference_update(named)
    return left


def _references() -> Iterator[Iterable[str]]:
    rows = JournalEntry.objects.order_by()
    for name in ("request", "result"):
        big = rows.annotate(blob=KT(f"{name}__{BLOB_KEY}")).filter(blob__isnull=False)
        yield big.values_list("blob", flat=True).iterator()
    specs = rows.filter(kind="run.started").annotate(spec=KT("result__spec"))
    yield specs.values_list("spec", flat=True).distinct().iterator()
    for digests in rows.filter(digests__isnull=False).values_list("digests", flat=True).iterator():
        yield [value for value in (digests or {}).values() if isinstance(value, str)]


def prune_blobs(ids: Sequence[str]) -> int:
    """Delete the bodies that were not stored again meanwhile; returns how many. Pass at most some hundreds."""
    return delete_rows(Blob.objects.filter(id__in=ids, created_at__lt=clock.after(-BLOB_AGE_S)))


def expired_tickets() -> QuerySet[Ticket]:
    return Ticket.objects.filter(expires_at__lte=clock.now())


def delete_rows(rows: QuerySet[Any]) -> int:
    """In one statement: no other row refers to these, and the ORM would read them all to find that out."""
    with transaction.atomic():
        lock_rows(rows)
        if rows.model is JournalEntry:
            keep_blocks(rows)
        deleted: int = rows._raw_delete(rows.db) or 0
        return deleted


def keep_blocks(entries: QuerySet[JournalEntry]) -> None:
    """Write the blocks of these rows and the agent into the turns that refer to them: the history outlives the
    journal."""
    held_by = entries.order_by().filter(run=OuterRef("run"), seq=OuterRef("entry_seq"))
    runs = Run.objects.filter(id__in=entries.order_by().values("run"))
    if sessions := set(runs.values_list("session", flat=True)):  # turns have no index of the run
        fill_turns(Turn.objects.filter(Exists(held_by), session__in=sessions))


def old_sessions(older_than_s: float) -> QuerySet[Session]:
    """Conversations without a change since then, without live runs, follows, schedules and sources."""
    cutoff = clock.after(-older_than_s)
    here = Run.objects.filter(session=OuterRef("pk"))
    going_on = here.exclude(Q(status__in=TERMINAL), finished_at__lt=cutoff)
    follows = Follow.objects.filter(Q(session=OuterRef("pk")) | Q(home=OuterRef("pk")))
    schedules, sources = Schedule.objects.filter(session=OuterRef("pk")), Source.objects.filter(home=OuterRef("pk"))
    rows = Session.objects.filter(~Exists(going_on), updated_at__lt=cutoff, parent_session=None, erasure=None)
    return rows.filter(~Exists(follows), ~Exists(schedules), ~Exists(sources))


def old_requests(older_than_s: float) -> QuerySet[HumanRequest]:
    """Closed requests. Those of a failed run stay: a retry opens them again."""
    rows = HumanRequest.objects.annotate(closed_at=Coalesce("answered_at", "created_at"))
    rows = rows.filter(closed_at__lt=clock.after(-older_than_s), run__status__in=(Status.COMPLETED, Status.CANCELLED))
    return rows.exclude(status=HumanRequest.Status.PENDING).order_by("pk")


def old_audits(older_than_s: float) -> QuerySet[AuditRecord]:
    return AuditRecord.objects.filter(created_at__lt=clock.after(-older_than_s)).order_by("pk")


def delete_some(rows: QuerySet[Any], *, cascades: bool = False) -> int:
    """Delete at most ROWS of these rows, in one transaction; returns how many. `cascades`: others refer to them."""
    with transaction.atomic():
        some = first_of(rows)
        if not cascades:
            return delete_rows(some)
        count = some.count()
        some.delete()
        return count


def first_of(rows: QuerySet[Any]) -> QuerySet[Any]:
    """At most ROWS of these rows. Of a table whose key has two columns the last ones: a journal goes from its end."""
    if rows.model in (JournalEntry, Turn):
        end = rows.order_by("-pk")[ROWS - 1 : ROWS].first()
        return rows if end is None else rows.filter(pk__gte=end.pk)
    keys = list(rows.values_list("pk", flat=True)[:ROWS])
    some: QuerySet[Any] = rows.model._default_manager.filter(pk__in=keys)
    return some
