"""What was published: one row a message, in the transaction of whoever publishes. Its fan-out begins behind that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from ravi_django.db import transaction
from ravi_django.kernel import IdempotencyMismatchError
from ravi_django.models import FeedItem, Follow, Publication
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease

ROWS = 1_000  # deleted in one statement, at most


def scope_of(topic: str, tenant: str, publisher: str, message_id: str) -> str:
    """Where a message id stands for one message: a publisher's, on one topic of a tenant."""
    return hashlib.sha256("\0".join((topic, tenant, publisher, message_id)).encode()).hexdigest()


def publish(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, publication: Publication) -> int:
    """Record an emit, and the publication with it; the last entry says what has come of it: its id and how many
    followers it has, or that the message id belongs to another message."""
    emitted = entries[-1]
    with transaction.atomic():
        # Before the fence, whose row is to tell of it: nobody holds a new publication and waits for this run.
        try:
            row, new = create_publication(publication)
            emitted.request = {**emitted.request, "publication": str(row.id), "followers": row.followers, "new": new}
        except IdempotencyMismatchError as error:
            emitted.result, emitted.error = None, {"type": type(error).__name__, "message": str(error)}
        store_big_values(entries)
        return fence.append(lease, entries, turns)


def create_publication(publication: Publication) -> tuple[Publication, bool]:
    """Write a publication in the caller's transaction; (the row, whether it is new). Its followers are those of now;
    with none it is done. Raises IdempotencyMismatchError when its scope has another message."""
    followers = Follow.objects.filter(topic=publication.topic, tenant=publication.tenant)
    publication.last = followers.order_by("-id").values_list("id", flat=True).first()
    if publication.last is not None:
        publication.followers = followers.filter(id__lte=publication.last).count()
    else:
        publication.done_at = clock.now()
    with transaction.atomic():
        Publication.objects.bulk_create([clock.stamp(publication)], ignore_conflicts=True)
        row: Any = Publication.objects.get(scope=publication.scope)
    if row.digest != publication.digest:
        raise IdempotencyMismatchError(
            f"message id {row.message_id!r} belongs to another message on {row.topic}; use a new id"
        )
    return row, row.id == publication.id


def old_publications(older_than_s: float) -> QuerySet[Publication]:
    """Those that are delivered to all, and wait in nobody's digest. With one goes what its message id stands for."""
    waiting = FeedItem.objects.filter(publication_id=OuterRef("id"))
    past = Publication.objects.filter(done_at__lt=clock.after(-older_than_s))
    return past.filter(~Exists(waiting))


def prune_publications(older_than_s: float) -> int:
    """Delete at most ROWS of them; returns how many. Call it until that is 0."""
    found = list(old_publications(older_than_s).order_by("id").values_list("id", flat=True)[:ROWS])
    rows: QuerySet[Any] = Publication.objects.filter(id__in=found)
    deleted: int = rows._raw_delete(rows.db) if found else 0
    return deleted
