"""Later deliveries to followers: the items of a digest, and publications that a follower could not take at once.

All items that wait for a follow are delivered in one message, or in several of at most RAVI["MAX_INPUT_BYTES"]. A
follower that cannot take it is tried again after AGAIN_S.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, Min, TextField, Window
from django.db.models.functions import Cast, Length, RowNumber

from ravi_django.access import Rights
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.lease.inbox import as_depth, depth_in
from ravi_django.kernel import DataPayload, Message, TopicId
from ravi_django.models import FeedItem, Follow, Publication
from ravi_django.wings.feeds.social.deliveries import Delivery, DeliveryResult, UnknownAgent, deliver
from ravi_django.wings.feeds.social.delivery_rows import FollowerMessage
from ravi_django.wings.feeds.social.follow_rows import LockedFollow, forget, lock_followers, move_up, put_off

log = logging.getLogger("ravi.fan_out")

AGAIN_S = 60.0
TRIES = 15  # failed deliveries of an item, before it is dropped
MOST_ITEMS = 200  # of one message
ITEM_BYTES = 512  # of an item, added to its payload
BATCH_BYTES = 32 * 1024 * 1024  # of one transaction's messages


class Item(NamedTuple):
    id: int
    follow_id: UUID
    publication_id: UUID


@dataclass(frozen=True, slots=True)
class DueBatch:
    """The result of one batch of due items."""

    looked_at: int  # locked followers with a due item: delivered, dropped or postponed
    woken: list[UUID] = field(default_factory=list)


def has_due() -> bool:
    return FeedItem.objects.filter(due_at__lte=clock.now()).exists()


def deliver_due(limit: int, rights: Rights | None = None) -> DueBatch | None:
    """Deliver what is due to at most `limit` followers; None when nothing is due."""
    with transaction.atomic():
        due = _due(limit)
        if not due:
            return None
        present = due[0][1]
        checked = lock_followers([follow_id for follow_id, _ in due], rights)
        forget(FeedItem.objects.filter(follow_id__in=checked.refused), "no follower may get them any more")
        chosen, messages = _messages({one.follower.id: one for one in checked.allowed})
        deliveries = [
            Delivery(one.follower, messages[one.follower.id]) for one in checked.allowed if one.follower.id in messages
        ]
        result = deliver(deliveries)
        result.failed |= {one.follower.id: UnknownAgent(one.follower.agent) for one in checked.unknown}
        chosen |= _items([one.follower.id for one in checked.unknown])
        _settle(chosen, result, present)
        put_off((one.follower.id for one in checked.undecided), present + timedelta(seconds=AGAIN_S))
        reported = [one.follower.id for one in checked.allowed if one.dropped and one.follower.id in result.delivered]
        Follow.objects.filter(id__in=reported).update(dropped=0)
        return DueBatch(len(checked.ids), result.woken)


def _due(limit: int) -> list[tuple[UUID, datetime]]:
    """The follows with something due, the longest overdue first, with the database's present time."""
    rows = FeedItem.objects.filter(due_at__lte=clock.now()).order_by().values("follow_id").annotate(due=Min("due_at"))
    return list(rows.annotate(present=clock.now()).order_by("due").values_list("follow_id", "present")[:limit])


def _messages(follows: Mapping[UUID, LockedFollow]) -> tuple[dict[UUID, list[Item]], dict[UUID, FollowerMessage]]:
    """The items that each follow gets now, and their message. The rest stays for the next
    message or transaction."""
    waiting = _items(follows)
    bodies = Cast("body", TextField())
    published = Publication.objects.filter(id__in={item.publication_id for items in waiting.values() for item in items})
    sizes = dict(published.annotate(size=Length(bodies)).values_list("id", "size"))
    chosen: dict[UUID, list[Item]] = {}
    total = 0
    for follow_id, items in waiting.items():
        chosen[follow_id], size = _fitting(items, sizes)
        total += size
        if total > BATCH_BYTES:
            break
    rows = published.in_bulk({item.publication_id for items in chosen.values() for item in items})
    made: dict[tuple[Any, ...], FollowerMessage] = {}
    messages = {}
    for follow_id, items in chosen.items():
        ids, follow = [item.publication_id for item in items], follows[follow_id]
        if len(ids) == 1 and not ((follow.every_s or follow.dropped) and sizes[ids[0]] <= _room()):
            messages[follow_id] = message_of(rows[ids[0]])
            continue
        key = (follow.dropped, *ids)
        if key not in made:
            made[key] = digest_of([rows[one] for one in ids], follow.dropped)
        messages[follow_id] = made[key]
    return chosen, messages


def _items(follow_ids: Iterable[UUID]) -> dict[UUID, list[Item]]:
    number = Window(RowNumber(), partition_by=[F("follow_id")], order_by=F("publication_id").asc())
    rows = (
        FeedItem.objects.filter(follow_id__in=list(follow_ids)).annotate(number=number).filter(number__lte=MOST_ITEMS)
    )
    items: dict[UUID, list[Item]] = {}
    for row in rows.order_by("follow_id", "publication_id").values_list(*Item._fields):
        item = Item(*row[: len(Item._fields)])
        items.setdefault(item.follow_id, []).append(item)
    return items


def _room() -> int:
    """Bytes of the items of one digest."""
    return int(conf.MAX_INPUT_BYTES) - 2 * ITEM_BYTES


def _fitting(items: list[Item], sizes: Mapping[UUID, int]) -> tuple[list[Item], int]:
    """The first items, as many as one message takes, and their bytes. An item as large as a message comes alone."""
    size = 0
    for count, item in enumerate(items):
        more = sizes[item.publication_id] + ITEM_BYTES
        if count and size + more > _room():
            return items[:count], size
        size += more
    return items, size


def message_of(publication: Publication) -> FollowerMessage:
    """The message of one publication alone."""
    return FollowerMessage(publication.id.hex, publication.body, publication.run_id)


def digest_of(publications: Sequence[Publication], dropped: int = 0) -> FollowerMessage:
    """One message of several publications of a topic, the oldest first, with the number of older ones that were
    dropped. Its id is computed from theirs."""
    topic = publications[0].topic
    name = hashlib.sha256("\0".join(one.id.hex for one in publications).encode()).hexdigest()[:32]
    lost = {"dropped": dropped} if dropped else {}
    items = [
        {
            "topic": one.topic,
            "publication": str(one.id),
            "message": one.body.get("id"),
            "sender": one.body.get("sender"),
            "payload": one.body.get("payload"),
            "published_at": one.created_at.isoformat(),
        }
        for one in publications
    ]
    depth = as_depth(max(depth_in(one.body.get("metadata")) for one in publications))
    payload = DataPayload(data={"topic": topic, "items": items, **lost})
    message = Message(id=name, target=TopicId.parse(topic), payload=payload, metadata=depth)
    return FollowerMessage(name, message.model_dump(mode="json"))


def _settle(chosen: Mapping[UUID, list[Item]], result: DeliveryResult, present: datetime) -> None:
    """Delete what was delivered, and set the next due time of the rest. Items that fail TRIES times are dropped:
    otherwise the follower's next items would never come."""

    def of(follow_ids: Iterable[UUID]) -> Any:
        return FeedItem.objects.filter(id__in=[item.id for follow_id in follow_ids for item in chosen[follow_id]])

    of(result.delivered).delete()
    forget(of(result.publishers), "they come from the run that would get them")
    for follow_id, error in result.failed.items():
        log.warning("not delivered to follow %s: %s", follow_id, error, extra={"action": "fan_out.follower_failed"})
    of(result.failed).update(tries=F("tries") + 1)
    forget(of(result.failed).filter(tries__gte=TRIES), f"{TRIES} deliveries have failed")
    move_up([*result.delivered, *result.publishers, *result.failed], present)
    put_off(result.busy, present + timedelta(seconds=conf.SWEEP_S))
    put_off([*result.later, *result.failed], present + timedelta(seconds=AGAIN_S))
