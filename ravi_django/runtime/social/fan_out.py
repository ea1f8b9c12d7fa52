"""Deliver a publication to its followers, batch by batch in the order of their ids.

Each batch is one transaction that also records how far it has come. After a crash the next batch begins there: no
follower is skipped, and none gets it twice. The publications of one topic are delivered one after the other, the
oldest first. A hint starts it, and the sweep finds what hints missed.
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
from ravi_django.runtime.social.backlog import BEHIND, drop_oldest, oldest_due, set_aside
from ravi_django.runtime.social.bulk import Swept, sender_of, tell_at_home
from ravi_django.runtime.social.deliveries import Delivered, Due, UnknownAgent, deliver
from ravi_django.runtime.social.delivery_rows import Letter
from ravi_django.runtime.social.digests import letter_of
from ravi_django.runtime.social.followers import Locked, being_changed, lock_followers, owner_is_active

log = logging.getLogger("ravi.fan_out")

BATCH_BYTES = 32 * 1024 * 1024  # of one transaction's messages: of large ones fewer go at once


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch has done."""

    publication_id: UUID
    delivered: int  # followers
    waiting: int  # followers for whom it was set aside
    at_once: bool  # some of that is due already
    done: bool  # there are no more followers
    woken: list[UUID] = field(default_factory=list)  # runs that can be claimed


def deliver_batch(publication_id: UUID | str, limit: int, rights: Rights | None = None) -> Batch | None:
    """Deliver to the next followers, at most `limit`, of the oldest publication of that one's topic; None when all are
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
    """The user whose `emit_deliveries` the batch counts against; None for what agents and the site itself emit."""
    owner = publication.owner_id
    if owner is None or limits.limit("emit_deliveries") is None or sender_of(publication) is not None:
        return None
    return get_user_model()._default_manager.filter(pk=owner).first()  # None: deleted since


def _deliver(publication: Any, size: int, rights: Rights | None) -> Batch:
    letter = letter_of(publication)
    known = _told_at_home(publication, letter, size, rights) if postgres.in_use() else None
    window = _next(publication, size) if known is None else known.left
    upto = (window[-1] if window else None) if known is None else known.upto
    looked = lock_followers(window, rights)
    for error in looked.undecided.values():
        raise error
    found = [one for one in looked.found if not _is_its_own(publication, one)]
    later = {one.follower.id: due for one in found if (due := one.due_at(publication.present)) is not None}
    given = deliver([Due(one.follower, letter) for one in found if one.follower.id not in later])
    later |= dict.fromkeys(oldest_due(list(looked.unknown)), BEHIND)
    unknown = {follow_id: UnknownAgent(agent) for follow_id, agent in looked.unknown.items()}
    given.failed |= {follow_id: error for follow_id, error in unknown.items() if follow_id not in later}
    locked = looked.ids
    given.busy += being_changed(follow_id for follow_id in window if follow_id not in locked)
    _set_all_aside(publication, later, given)
    drop_oldest(list(later), publication.present)
    delivered = len(given.given) + (known.delivered if known else 0)
    waiting = len(later) + len(given.busy) + len(given.full) + len(given.resting) + len(given.failed)
    done = upto is None or upto == publication.last
    Publication.objects.filter(id=publication.id).update(
        upto=upto or publication.upto,
        delivered=F("delivered") + delivered + waiting,
        done_at=clock.now() if done else None,
    )
    overdue = (one.items_at is not None and one.items_at <= publication.present for one in found)
    at_once = bool(given.busy) or any(overdue)
    woken = [*(known.woken if known else ()), *given.woken]
    return Batch(publication.id, delivered, waiting, at_once, done, woken)


def _told_at_home(publication: Any, letter: Letter, limit: int, rights: Rights | None) -> Swept | None:
    """None where every follower needs a closer look: the site has a policy of its own, or one's rows make an error."""
    if (rights is not None and not rights.by_access) or publication.last is None:
        return None
    try:
        with transaction.atomic():
            swept = tell_at_home(publication, letter, limit, owner_is_active() is not None, rights is not None)
            connection.check_constraints()
            return swept
    except OperationalError:
        raise
    except DatabaseError:
        return None  # whose they are is found by halves


def _is_its_own(publication: Publication, one: Locked) -> bool:
    """What an agent publishes does not come back to it: it would publish again, for ever."""
    return one.follower.agent == sender_of(publication) and one.follower.owner_id == publication.owner_id


def unfinished(limit: int, older_than_s: float = 0.0) -> list[UUID]:
    """Of each topic with publications that are not delivered to all the oldest; of more topics than `limit` any, so
    that none which fails, or never comes to an end, stands before the others."""
    place = Window(RowNumber(), partition_by=[F("topic"), F("tenant")], order_by=F("id").asc())
    rows = _open().filter(created_at__lte=clock.after(-older_than_s)).annotate(place=place).filter(place=1)
    return list(rows.order_by("?").values_list("id", flat=True)[:limit])


def has_next(publication_id: UUID | str) -> bool:
    """Whether there is one of that one's topic that is not delivered to all."""
    about = Publication.objects.filter(id=publication_id).values("topic", "tenant").first()
    return about is not None and _open().filter(**about).exists()


def _open() -> QuerySet[Publication]:
    return Publication.objects.filter(done_at=None)


def _oldest_of(publication_id: UUID | str) -> Any:
    """Locked, with the time that it is by the database."""
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
    """What cannot be given now is due by itself: nobody else waits for it."""
    soon = publication.present + timedelta(seconds=conf.SWEEP_S)
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
            *((follow_id, soon, 0) for follow_id in given.full),
            *((follow_id, until, 0) for follow_id, until in given.resting.items()),
            *((follow_id, soon, 1) for follow_id in given.failed),
        ],
    )


BATCHES = 8  # of one task: then others' work gets its turn
FEW = 10  # runs that are hinted one by one
LOOKS = 16  # hints of many runs, at least


def hint(publication_id: UUID | str) -> None:
    """Have it delivered. Never raises."""
    background.hint("ravi.fan_out", str(publication_id))


def run(publication_id: UUID | str) -> None:
    """Deliver the publications of that one's topic, the oldest first, and what has become due by that; for a bounded
    time: what is left is hinted anew."""
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
    """Give followers what has become due, for a bounded time."""
    for _ in range(BATCHES):
        batch = digests.deliver_due(int(conf.FAN_OUT_BATCH), access.delivery_rights())
        if batch is None:
            return
        wake(batch.woken)
        if not batch.looked_at:
            return


def sweep() -> None:
    """Go on with what nobody is at: publications that were not delivered to all in time, and what has become due.
    Bounded; where there is more, hints go out as well."""
    left = unfinished(BATCHES, older_than_s=conf.SWEEP_S)
    for publication_id in left:
        try:
            batch = deliver_batch(publication_id, int(conf.FAN_OUT_BATCH), access.delivery_rights())
        except Exception:  # of the site's policy: the other topics are not to wait for it
            log.exception("publication %s: not delivered", publication_id, extra={"action": "fan_out.failed"})
            continue
        if batch is not None:
            wake(batch.woken)
            if has_next(publication_id):
                hint(publication_id)
    if digests.has_due():
        deliver_due()


def wake(run_ids: Sequence[UUID]) -> None:
    """Set workers going on runs that can be claimed. Of many, each is not hinted by itself: a worker that looks takes
    one after the other until there are no more, or it is full."""
    if len(run_ids) <= FEW:
        hints.send_many(run_ids)
        return
    for _ in range(min(len(run_ids), max(LOOKS, 2 * workers.alive().count()))):
        background.hint("ravi.look")
