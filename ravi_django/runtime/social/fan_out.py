"""Deliver a publication to its followers, batch by batch in the order of their ids.

Each batch is one transaction that also records how far it has come. After a crash the next batch begins there: no
follower is skipped, and none gets it twice. The publications of one topic are delivered one after the other, the
oldest first. A hint starts it, and the sweep finds what hints missed.

A follower that cannot take it now gets a FeedItem that is due later: nobody waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import DatabaseError, OperationalError
from django.db.models import F, QuerySet, Window
from django.db.models.functions import RowNumber

from ravi_django import access, limits
from ravi_django.access import Rights
from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.models import Follow, Publication
from ravi_django.runtime.db import clock, postgres
from ravi_django.runtime.journal.entries import encode
from ravi_django.runtime.runs import background, hints, workers
from ravi_django.runtime.social import digests
from ravi_django.runtime.social.backlog import drop_oldest, set_aside
from ravi_django.runtime.social.bulk import Swept, deliver_at_home, sender_of
from ravi_django.runtime.social.deliveries import Delivered, Due, Follower, deliver
from ravi_django.runtime.social.delivery_rows import Letter
from ravi_django.runtime.social.digests import letter_of
from ravi_django.runtime.social.followers import being_changed, lock_followers, owner_is_active

log = logging.getLogger("ravi.fan_out")

BATCH_BYTES = 32 * 1024 * 1024  # of one transaction's messages


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one batch."""

    publication_id: UUID
    delivered: int  # followers
    waiting: int  # followers that get it later
    at_once: bool  # some of that is due already
    done: bool  # there are no more followers
    woken: list[UUID] = field(default_factory=list)  # runs that can be claimed


def deliver_batch(publication_id: UUID | str, limit: int, rights: Rights | None = None) -> Batch | None:
    """Deliver the oldest publication of this one's topic to its next followers, at most `limit`. None when all are
    delivered, another process delivers it now, or its user has no deliveries left in this minute."""
    with transaction.atomic():
        publication = _oldest_of(publication_id)
        if publication is None:
            return None
        size = max(1, min(limit, BATCH_BYTES // max(1, len(encode(publication.body)))))
        user = _limited(publication)
        if user is not None:
            size = min(size, max(1, publication.followers - publication.delivered))
        size, used = limits.take(user, "emit_deliveries", size), 0
        if size == 0:
            return None
        try:
            batch = _deliver(publication, size, rights)
            used = batch.delivered + batch.waiting
        finally:
            limits.give_back(user, "emit_deliveries", size - used)
        return batch


def _limited(publication: Publication) -> Any:
    """The user whose limit `emit_deliveries` applies; None for what agents and the site itself emit."""
    owner = publication.owner_id
    if owner is None or limits.limit("emit_deliveries") is None or sender_of(publication) is not None:
        return None
    return get_user_model()._default_manager.filter(pk=owner).first()  # None: deleted since


def _deliver(publication: Any, size: int, rights: Rights | None) -> Batch:
    letter = letter_of(publication)
    known = _delivered_at_home(publication, letter, size, rights) if postgres.in_use() else None
    window = _next(publication, size) if known is None else known.left
    upto = (window[-1] if window else None) if known is None else known.upto
    looked = lock_followers(window, rights)
    own = {one.follower.id for one in looked.locked if _is_its_own(publication, one.follower)}
    waits = ((one.follower.id, one.due_at(publication.present)) for one in looked.locked)
    later = {follow_id: due for follow_id, due in waits if due is not None and follow_id not in own}
    skipped = own.union(later)
    given = deliver([Due(one.follower, letter) for one in looked.found if one.follower.id not in skipped])
    given.failed |= {follow_id: error for follow_id, error in looked.failed.items() if follow_id not in skipped}
    ids = looked.ids
    given.busy += being_changed(follow_id for follow_id in window if follow_id not in ids)
    _set_all_aside(publication, later, given)
    drop_oldest(list(later), publication.present)
    delivered = len(given.given) + (known.delivered if known else 0)
    waiting = len(later) + len(given.busy) + len(given.later) + len(given.failed)
    done = upto is None or upto == publication.last
    Publication.objects.filter(id=publication.id).update(
        upto=upto or publication.upto,
        delivered=F("delivered") + delivered + waiting,
        done_at=clock.now() if done else None,
    )
    overdue = (one.items_at is not None and one.items_at <= publication.present for one in looked.found)
    at_once = bool(given.busy) or any(overdue)
    woken = [*(known.woken if known else ()), *given.woken]
    return Batch(publication.id, delivered, waiting, at_once, done, woken)


def _delivered_at_home(publication: Any, letter: Letter, limit: int, rights: Rights | None) -> Swept | None:
    """None where every follower needs a closer look: the site has its own policy, or a row makes an error."""
    if (rights is not None and not rights.by_access) or publication.last is None:
        return None
    try:
        with transaction.atomic():
            swept = deliver_at_home(publication, letter, limit, owner_is_active() is not None, rights is not None)
            connection.check_constraints()
            return swept
    except OperationalError:
        raise
    except DatabaseError:
        return None


def _is_its_own(publication: Publication, follower: Follower) -> bool:
    """Skip the publisher itself, or it would answer its own message forever."""
    return follower.agent == sender_of(publication) and follower.owner_id == publication.owner_id


def unfinished(limit: int, older_than_s: float = 0.0) -> list[UUID]:
    """The oldest undelivered publication of each topic. Of more topics than `limit`, a random choice, so that topics
    that fail or never end cannot block the others."""
    place = Window(RowNumber(), partition_by=[F("topic"), F("tenant")], order_by=F("id").asc())
    rows = _open().filter(created_at__lte=clock.after(-older_than_s)).annotate(place=place).filter(place=1)
    return list(rows.order_by("?").values_list("id", flat=True)[:limit])


def has_next(publication_id: UUID | str) -> bool:
    """Whether its topic has a publication that is not delivered to all."""
    about = Publication.objects.filter(id=publication_id).values("topic", "tenant").first()
    return about is not None and _open().filter(**about).exists()


def _open() -> QuerySet[Publication]:
    return Publication.objects.filter(done_at=None)


def _oldest_of(publication_id: UUID | str) -> Any:
    """The locked row, with the database's present time."""
    about = Publication.objects.filter(id=publication_id).values("topic", "tenant").first()
    if about is None:
        return None
    oldest = _open().filter(**about).order_by("id").values_list("id", flat=True).first()
    if oldest is None:
        return None
    rows: Any = _open().filter(id=oldest).annotate(present=clock.now())
    return rows.select_for_update(skip_locked=True, no_key=True).first()


def _next(publication: Publication, limit: int) -> list[UUID]:
    if publication.last is None:
        return []
    rows = Follow.objects.filter(topic=publication.topic, tenant=publication.tenant, id__lte=publication.last)
    if publication.upto is not None:
        rows = rows.filter(id__gt=publication.upto)
    return list(rows.order_by("id").values_list("id", flat=True)[:limit])


def _set_all_aside(publication: Any, later: dict[UUID, datetime], given: Delivered) -> None:
    again = publication.present + timedelta(seconds=digests.AGAIN_S)
    for follow_id, error in given.failed.items():
        log.warning(
            "publication %s: not delivered to follow %s, which is tried again: %s",
            *(publication.id, follow_id, error),
            extra={"action": "fan_out.follower_failed"},
        )
    set_aside(
        publication.id,
        [
            *((follow_id, due, 0) for follow_id, due in later.items()),
            *((follow_id, publication.present, 0) for follow_id in given.busy),
            *((follow_id, again, 0) for follow_id in given.later),
            *((follow_id, again, 1) for follow_id in given.failed),
        ],
    )


BATCHES = 8  # of one task
FEW = 10  # runs that are hinted one by one
LOOKS = 16  # hints for more runs, at least


def hint(publication_id: UUID | str) -> None:
    """Have it delivered. Never raises."""
    background.hint("ravi.fan_out", str(publication_id))


def run(publication_id: UUID | str) -> None:
    """Deliver at most BATCHES batches of the topic's publications, the oldest first, and what is due at once. A new
    hint delivers the rest."""
    at_once = False
    for _ in range(BATCHES):
        batch = deliver_batch(publication_id, int(conf.FAN_OUT_BATCH), access.delivery_rights())
        if batch is None:
            break
        wake(batch.woken)
        at_once = at_once or batch.at_once
    else:
        hint(publication_id)
    if at_once:
        deliver_due()


def deliver_due() -> None:
    """Deliver at most BATCHES batches of due items."""
    for _ in range(BATCHES):
        batch = digests.deliver_due(int(conf.FAN_OUT_BATCH), access.delivery_rights())
        if batch is None:
            return
        wake(batch.woken)
        if not batch.looked_at:
            return


def sweep() -> None:
    """Go on with publications whose hint was lost, and deliver what is due. Bounded: hints go out for the rest."""
    for publication_id in unfinished(BATCHES, older_than_s=conf.SWEEP_S):
        try:
            batch = deliver_batch(publication_id, int(conf.FAN_OUT_BATCH), access.delivery_rights())
        except Exception:  # the other topics do not wait for it
            log.exception("publication %s: not delivered", publication_id, extra={"action": "fan_out.failed"})
            continue
        if batch is not None:
            wake(batch.woken)
            if has_next(publication_id):
                hint(publication_id)
    if digests.has_due():
        deliver_due()


def wake(run_ids: Sequence[UUID]) -> None:
    """Hint runs that can be claimed. For many runs, have the workers look: each then claims until none is left, or it
    is full."""
    if len(run_ids) <= FEW:
        hints.send_many(run_ids)
        return
    for _ in range(min(len(run_ids), max(LOOKS, 2 * workers.alive().count()))):
        background.hint("ravi.look")
