"""Deliver a publication to its followers, batch by batch in the order of their ids.

Each batch is one transaction that also records how far it has come. After a crash the next batch begins there: no
follower is skipped, and none gets it twice. The publications of one topic are delivered one after the other, the oldest
first. A hint starts the fan-out; the sweep starts it if the hint was lost.

A follower that cannot take the message now gets a FeedItem that is due later. The other followers do not wait for it.
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
from ravi_django.engine.db import claim_order, clock, postgres
from ravi_django.engine.db.postgres import NOW, as_text, cast
from ravi_django.engine.journal.entries import encode
from ravi_django.models import ACTIVE, Follow, Publication
from ravi_django.runs import background_tasks, hints, workers
from ravi_django.runs.catalog import registry
from ravi_django.runs.wake import WOKEN
from ravi_django.wings.feeds.social import digests
from ravi_django.wings.feeds.social.deliveries import Delivery, DeliveryResult, Follower, UnknownAgent, deliver
from ravi_django.wings.feeds.social.delivery_rows import PRIORITY, SIGNAL, FollowerMessage, json_text
from ravi_django.wings.feeds.social.digests import message_of
from ravi_django.wings.feeds.social.follow_rows import (
    EVERY_USER,
    being_changed,
    drop_oldest,
    lock_followers,
    owner_is_active,
    set_aside,
)

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
    message = message_of(publication)
    known = _delivered_to_live_runs(publication, message, size, rights) if postgres.in_use() else None
    window = _next(publication, size) if known is None else known.left
    upto = (window[-1] if window else None) if known is None else known.upto
    checked = lock_followers(window, rights)
    publishers = {one.follower.id for one in checked.locked if _is_publisher(publication, one.follower)}
    waits = ((one.follower.id, one.due_at(publication.present)) for one in checked.locked)
    later = {follow_id: due for follow_id, due in waits if due is not None and follow_id not in publishers}
    skipped = publishers.union(later)
    result = deliver([Delivery(one.follower, message) for one in checked.allowed if one.follower.id not in skipped])
    unknown = {one.follower.id: UnknownAgent(one.follower.agent) for one in checked.unknown}
    result.failed |= {follow_id: error for follow_id, error in unknown.items() if follow_id not in skipped}
    result.later += [one.follower.id for one in checked.undecided if one.follower.id not in skipped]
    ids = checked.ids
    result.busy += being_changed(follow_id for follow_id in window if follow_id not in ids)
    _set_all_aside(publication, later, result)
    drop_oldest(list(later), publication.present)
    delivered = len(result.delivered) + (known.delivered if known else 0)
    waiting = len(later) + len(result.busy) + len(result.later) + len(result.failed)
    done = upto is None or upto == publication.last
    Publication.objects.filter(id=publication.id).update(
        upto=upto or publication.upto,
        delivered=F("delivered") + delivered + waiting,
        done_at=clock.now() if done else None,
    )
    overdue = (one.items_at is not None and one.items_at <= publication.present for one in checked.allowed)
    at_once = bool(result.busy) or any(overdue)
    woken = [*(known.woken if known else ()), *result.woken]
    return Batch(publication.id, delivered, waiting, at_once, done, woken)


def _delivered_to_live_runs(
    publication: Any, message: FollowerMessage, limit: int, rights: Rights | None
) -> BulkResult | None:
    """None where every follower needs a closer look: the site has its own policy, or a row makes an error."""
    if (rights is not None and not rights.by_access) or publication.last is None:
        return None
    try:
        with transaction.atomic():
            active = owner_is_active() is not None
            result = deliver_to_live_runs(publication, message, limit, active, rights is not None)
            connection.check_constraints()
            return result
    except OperationalError:
        raise
    except DatabaseError:
        return None


def _is_publisher(publication: Publication, follower: Follower) -> bool:
    """Skip the publisher itself, or it would answer its own message forever."""
    return follower.agent == sender_of(publication) and follower.owner_id == publication.owner_id


def unfinished(limit: int, older_than_s: float = 0.0) -> list[UUID]:
    """The oldest undelivered publication of each topic. Of more topics than `limit`, a random choice, so that topics
    that fail or never end cannot block the others."""
    number = Window(RowNumber(), partition_by=[F("topic"), F("tenant")], order_by=F("id").asc())
    rows = _open().filter(created_at__lte=clock.after(-older_than_s)).annotate(number=number).filter(number=1)
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


def _set_all_aside(publication: Any, later: dict[UUID, datetime], result: DeliveryResult) -> None:
    again = publication.present + timedelta(seconds=digests.AGAIN_S)
    for follow_id, error in result.failed.items():
        log.warning(
            "publication %s: not delivered to follow %s, which is tried again: %s",
            *(publication.id, follow_id, error),
            extra={"action": "fan_out.follower_failed"},
        )
    set_aside(
        publication.id,
        [
            *((follow_id, due, 0) for follow_id, due in later.items()),
            *((follow_id, publication.present, 0) for follow_id in result.busy),
            *((follow_id, again, 0) for follow_id in result.later),
            *((follow_id, again, 1) for follow_id in result.failed),
        ],
    )


BATCHES = 8  # of one task
FEW = 10  # runs that are hinted one by one
LOOKS = 16  # hints for more runs, at least


def hint(publication_id: UUID | str) -> None:
    """Have it delivered. Never raises."""
    background_tasks.hint("ravi.fan_out", str(publication_id))


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
        background_tasks.hint("ravi.look")


_OWNER: Any = Follow._meta.get_field("owner")


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of one statement."""

    delivered: int
    woken: list[UUID]  # runs that can be claimed
    upto: UUID | None  # the last follower of this batch
    left: list[UUID]  # followers that need a closer look


def deliver_to_live_runs(
    publication: Publication, message: FollowerMessage, limit: int, active: bool, by_access: bool
) -> BulkResult:
    """On PostgreSQL, in one statement: deliver to those of the next followers that may get it at once, and whose run is
    live in their home. It stays beside `deliver` because 10,000 waiting runs take 0.4 s with it and 2 s without.

    The statement locks rows before it uses them, and PostgreSQL then reads their newest version: a run that has ended
    or was handed over is left out. A constraint makes it the one active run of its agent in that session. `active`:
    users have the column is_active. `by_access`: of follows with an owner, only those of agents that every user may
    run.
    """
    params = claim_order.parameters(PRIORITY) | {
        "topic": publication.topic,
        "tenant": publication.tenant,
        "upto": str(publication.upto) if publication.upto else None,
        "last": str(publication.last),
        "limit": str(limit),
        "code": postgres.texts(list(registry._agents)),
        "open": postgres.texts(
            [address for address in list(registry._agents) if registry.access_of(address) == EVERY_USER]
        ),
        "unread": str(int(conf.FEED_UNREAD)),
        "by": str(message.by) if message.by else None,
        "sender": sender_of(publication),
        "owner": as_text(_OWNER, publication.owner_id),
        "message": message.id,
        "body": json_text(message.body),
    }
    ((upto, delivered, woken, left),) = postgres.execute(_statement(active, by_access), params)
    return BulkResult(delivered, woken or [], upto, left or [])


def sender_of(publication: Publication) -> str | None:
    """The agent that has published it."""
    sender: str | None = publication.body.get("sender")
    return sender


def _statement(active: bool, by_access: bool) -> str:
    from django.contrib.auth import get_user_model

    meta = get_user_model()._meta
    users = f'LEFT JOIN "{meta.db_table}" u ON u."{meta.pk.column}" = f.owner_id' if active else ""
    is_active = "AND (f.owner_id IS NULL OR u.is_active)" if active else ""
    code, is_open = (f"f.agent IN (SELECT jsonb_array_elements_text(%({name})s::jsonb))" for name in ("code", "open"))
    by_row = f"a.source = 'admin' AND a.access = '{EVERY_USER}' AND NOT {code}"
    is_allowed = f"AND (f.owner_id IS NULL OR {is_open} OR ({by_row}))" if by_access else ""
    statuses = ", ".join(f"'{status.value}'" for status in ACTIVE)
    return f"""
WITH next AS MATERIALIZED (
  SELECT id FROM ravi_follow
  WHERE topic = %(topic)s::text AND tenant = %(tenant)s::text AND id <= %(last)s::uuid
    AND (%(upto)s::uuid IS NULL OR id > %(upto)s::uuid)
  ORDER BY id LIMIT %(limit)s::int
), held AS MATERIALIZED (
  SELECT f.id, f.agent, f.owner_id, f.tenant, f.every_s, coalesce(f.session_id, f.home_id) AS home
  FROM ravi_follow f {users} LEFT JOIN ravi_agent a ON a.address = f.agent
  WHERE f.id IN (SELECT id FROM next)
    AND coalesce(a.enabled, {code}) {is_allowed}
    AND (f.every_s = 0 OR f.last_at IS NULL OR f.last_at + make_interval(secs => f.every_s) <= {NOW})
    AND NOT EXISTS (SELECT FROM ravi_feeditem i WHERE i.follow_id = f.id) {is_active}
    AND (f.agent IS DISTINCT FROM %(sender)s::text OR f.owner_id IS DISTINCT FROM %(owner)s::{cast(_OWNER)})
  FOR NO KEY UPDATE OF f SKIP LOCKED
), live AS MATERIALIZED (
  SELECT r.id, held.id AS follow_id, held.every_s
  FROM held JOIN ravi_run r ON r.session_id = held.home AND r.agent = held.agent
  WHERE r.parent_id IS NULL AND r.status IN ({statuses}) AND r.tenant = held.tenant
    AND r.owner_id IS NOT DISTINCT FROM held.owner_id
    AND r.id IS DISTINCT FROM %(by)s::uuid
    AND (SELECT count(*) FROM ravi_inboxmessage m
      WHERE m.run_id = r.id AND m.id > r.read_upto AND m.consumed_at IS NULL AND m.name = '{SIGNAL}'
    ) < %(unread)s::bigint
  ORDER BY r.id
  FOR NO KEY UPDATE OF r SKIP LOCKED
), sent AS (
  INSERT INTO ravi_inboxmessage (run_id, message_id, name, body, created_at)
  SELECT DISTINCT ON (id) id, %(message)s::text, '{SIGNAL}', %(body)s::jsonb, {NOW} FROM live
  WHERE NOT EXISTS (SELECT FROM ravi_inboxmessage m WHERE m.run_id = live.id AND m.message_id = %(message)s::text)
  ORDER BY id
  RETURNING run_id
), woken AS (
  UPDATE ravi_run SET {WOKEN}
  FROM sent WHERE ravi_run.id = sent.run_id RETURNING ravi_run.id, ravi_run.status
), noted AS (
  UPDATE ravi_follow SET last_at = {NOW} FROM live WHERE ravi_follow.id = live.follow_id AND live.every_s > 0
)
SELECT (SELECT id FROM next ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM live),
  (SELECT array_agg(id) FROM woken WHERE status = 'pending'),
  (SELECT array_agg(id) FROM next WHERE id NOT IN (SELECT follow_id FROM live))"""  # noqa: S608 - of our own names
