"""Saves of a site's models that sources wait for: noted in the saver's transaction, told after it.

A note is a row of its own, whose key nobody else has: the saver waits for nobody, and nobody for the saver. Who tells
takes notes away in the transaction that tells of them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from django.db import connections, router

from ravi_django.capabilities.feeds import Item
from ravi_django.db import transaction
from ravi_django.models import Source, SourceItem
from ravi_django.runtime import clock
from ravi_django.runtime.store.telling import BATCH, tell
from ravi_django.runtime.store.unread import full_sources

Read = Callable[[Source, Sequence[SourceItem]], Sequence[Item]]


KEPT_S = 7 * 86400.0  # that a save is kept for, while nobody can be told of it


class Unreadable(Exception):
    """What was saved cannot be told of as things are; the words are for the source's `error`."""


def declared_models() -> dict[str, tuple[UUID, ...]]:
    """The enabled sources of each model, by `app.model` in small letters."""
    found: dict[str, tuple[UUID, ...]] = {}
    rows = Source.objects.filter(kind=Source.Kind.MODEL, enabled=True).order_by("id")
    for source_id, location in rows.values_list("id", "location"):
        found[location.lower()] = (*found.get(location.lower(), ()), source_id)
    return found


def note_save(source_ids: Iterable[UUID], pk: str, created: bool) -> None:
    """In the saver's transaction, and a savepoint of ours in it: what fails here fails no save."""
    present, untold = clock.fixed(), {"pk": pk, "created": created}
    using = router.db_for_write(SourceItem)
    with transaction.atomic(using=using):
        rows = [
            SourceItem(source_id=source_id, identity=_nobody_elses(), untold=untold)
            for source_id in _kept(source_ids, using)
        ]
        if present is not None:
            for row in rows:
                row.seen_at = present
        SourceItem.objects.bulk_create(rows)


def _nobody_elses() -> str:
    return hashlib.sha256(secrets.token_bytes(32)).hexdigest()


def _kept(source_ids: Iterable[UUID], using: str) -> list[UUID]:
    """Those that are there now, and stay until the saver has committed: the database looks at a note's source at the
    commit, which would fail if it were gone by then. One that is being deleted is left out, and not waited for."""
    ids = list(source_ids)
    if connections[using].vendor != "postgresql":  # the writer is alone
        return list(Source.objects.using(using).filter(id__in=ids, enabled=True).values_list("id", flat=True))
    with connections[using].cursor() as cursor:
        cursor.execute(_KEEP, [ids])
        return [row[0] for row in cursor.fetchall()]


_KEEP = f"SELECT id FROM {Source._meta.db_table} WHERE id = ANY(%s) AND enabled ORDER BY id FOR KEY SHARE SKIP LOCKED"  # noqa: S608


def with_untold(older_than_s: float, limit: int) -> list[UUID]:
    """Enabled sources with a note that is older: whoever was to tell of it is gone. Not those that take no more now;
    and which of too many is left to chance, so that those of which nobody can be told keep nobody else out."""
    rows = SourceItem.objects.filter(untold__isnull=False, seen_at__lt=clock.after(-older_than_s))
    late = Source.objects.filter(id__in=rows.values("source_id"), enabled=True).order_by("?")
    found = list(late.values_list("id", flat=True)[: 10 * limit])
    full = full_sources(found) if found else set()
    return [source_id for source_id in found if source_id not in full][:limit]


def tell_saves(source_id: UUID, read: Read) -> int:
    """Tell of a batch of notes, and take them away, in one transaction; `read` makes the items of them, under the
    source's lock: of two at once the later one's are the newer. Returns how many were told; 0 when there are none, or
    when nobody can be told now. They are kept for a week then, for somebody to fix it."""
    with transaction.atomic():
        locked = Source.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
        source = locked.filter(id=source_id, enabled=True).first()
        if source is None:
            return 0
        notes = list(SourceItem.objects.filter(source=source, untold__isnull=False).order_by("id")[:BATCH])
        if not notes:
            return 0
        try:
            told = tell(source, read(source, notes))
        except Unreadable as refusal:
            heard(source.id, f"{refusal}; what is saved meanwhile is kept for 7 days")
            _drop_old(source)
            return 0
        if told.error:
            _drop_old(source)
            return 0
        SourceItem.objects.filter(id__in=[note.id for note in notes]).delete()
        heard(source.id)
    return len(notes)


def _drop_old(source: Source) -> None:
    SourceItem.objects.filter(source=source, untold__isnull=False, seen_at__lt=clock.after(-KEPT_S)).delete()


def heard(source_id: UUID, error: str = "") -> None:
    """Something came, at a source that is not polled."""
    Source.objects.filter(id=source_id).update(checked_at=clock.now(), error=error, failures=int(bool(error)))
