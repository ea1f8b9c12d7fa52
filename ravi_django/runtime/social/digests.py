"""What followers are to be given later: a digest's items, what came while a follower had enough unread, and what could
not be delivered. Each becomes due by itself; then all that waits for a follow comes in one message, or in several of
at most RAVI["MAX_INPUT_BYTES"]."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, Min, TextField, Window
from django.db.models.functions import Cast, Length, RowNumber

from ravi_django.access import Rights
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import DataPayload, Message, TopicId
from ravi_django.models import FeedItem, Follow, Publication
from ravi_django.runtime.db import clock
from ravi_django.runtime.lease.inbox import hops_in, noted
from ravi_django.runtime.social.backlog import forget, move_up, put_off
from ravi_django.runtime.social.deliveries import Delivered, Due, UnknownAgent, deliver
from ravi_django.runtime.social.delivery_rows import Letter
from ravi_django.runtime.social.followers import Locked, lock_followers

log = logging.getLogger("ravi.fan_out")

TRIES = 8  # deliveries of an item that make an error, before it is given up
MOST_ITEMS = 200  # of one message
ITEM_BYTES = 512  # of an item beside its payload
BATCH_BYTES = 32 * 1024 * 1024  # of one transaction's messages
LONGEST_S = 300.0  # until it is looked again whether a follower has read


class Item(NamedTuple):
    id: int
    follow_id: UUID
    publication_id: UUID
    tries: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DueBatch:
    """What one batch of due items has done."""

    delivered: int  # followers
    looked_at: int  # followers that had something due, and were nobody else's: served, given up or put off
    woken: list[UUID] = field(default_factory=list)


def has_due() -> bool:
    return FeedItem.objects.filter(due_at__lte=clock.now()).exists()


def deliver_due(limit: int, rights: Rights | None = None) -> DueBatch | None:
    """Give followers what is due, at most `limit` of them; None when nothing is."""
    with transaction.atomic():
        due = _due(limit)
        if not due:
            return None
        present = due[0][1]
        looked = lock_followers([follow_id for follow_id, _ in due], rights)
        forget(FeedItem.objects.filter(follow_id__in=looked.refused), "nobody may be given them any more")
        chosen, letters = _letters({one.follower.id: one for one in looked.found})
        dues = [Due(one.follower, letters[one.follower.id]) for one in looked.found if one.follower.id in letters]
        given = deliver(dues)
        given.failed |= {follow_id: UnknownAgent(agent) for follow_id, agent in looked.unknown.items()}
        chosen |= _items(list(looked.unknown))
        _settle(chosen, given, present)
        _put_off_undecided(looked.undecided, present)
        told = [one.follower.id for one in looked.found if one.dropped and one.follower.id in given.given]
        Follow.objects.filter(id__in=told).update(dropped=0)
        return DueBatch(len(given.given), len(looked.ids), given.woken)


def _due(limit: int) -> list[tuple[UUID, datetime]]:
    """The follows with something due, the longest overdue first, and the time that it is by the database."""
    rows = FeedItem.objects.filter(due_at__lte=clock.now()).order_by().values("follow_id").annotate(due=Min("due_at"))
    return list(rows.annotate(present=clock.now()).order_by("due").values_list("follow_id", "present")[:limit])


# --------------------------------------------------------------------------------------------------- the messages


def _letters(follows: dict[UUID, Locked]) -> tuple[dict[UUID, list[Item]], dict[UUID, Letter]]:
    """The items that each follow is given now, and the message that they come in. What is too much for one message, or
    for one transaction, stays for the next."""
    waiting = _items(list(follows))
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
    wanted = {item.publication_id for items in chosen.values() for item in items}
    rows = published.filter(id__in=wanted).in_bulk()
    made: dict[tuple[Any, ...], Letter] = {}
    letters = {}
    for follow_id, items in chosen.items():
        ids, follow = [item.publication_id for item in items], follows[follow_id]
        if len(ids) == 1 and not ((follow.every_s or follow.dropped) and sizes[ids[0]] <= _room()):
            letters[follow_id] = letter_of(rows[ids[0]])
            continue
        key = (follow.dropped, *ids)
        if key not in made:
            made[key] = digest_of([rows[one] for one in ids], follow.dropped)
        letters[follow_id] = made[key]
    return chosen, letters


def _items(follow_ids: list[UUID]) -> dict[UUID, list[Item]]:
    place = Window(RowNumber(), partition_by=[F("follow_id")], order_by=F("publication_id").asc())
    rows = FeedItem.objects.filter(follow_id__in=follow_ids).annotate(place=place).filter(place__lte=MOST_ITEMS)
    found: dict[UUID, list[Item]] = {}
    for row in rows.order_by("follow_id", "publication_id").values_list(*Item._fields):
        item = Item(*row[: len(Item._fields)])
        found.setdefault(item.follow_id, []).append(item)
    return found


def _room() -> int:
    """Bytes of the items of one digest."""
    return int(conf.MAX_INPUT_BYTES) - 2 * ITEM_BYTES


def _fitting(items: list[Item], sizes: dict[UUID, int]) -> tuple[list[Item], int]:
    """The first of them, as many as one message takes, and their bytes. One that is as large as a message by itself
    is one by itself."""
    size = 0
    for count, item in enumerate(items):
        more = sizes[item.publication_id] + ITEM_BYTES
        if count and size + more > _room():
            return items[:count], size
        size += more
    return items, size


def letter_of(publication: Publication) -> Letter:
    """The publication as a follower gets it by itself."""
    body = publication.body
    hops = noted(hops_in(body.get("metadata")))
    payload = {"topic": publication.topic, "publication": str(publication.id), "message": body.get("id"), **hops}
    return Letter(publication.id.hex, body, payload, publication.run_id)


def digest_of(publications: Sequence[Publication], dropped: int = 0) -> Letter:
    """Several of one topic in one message, the oldest first, and how many older ones were dropped. Its id follows from
    theirs."""
    topic, newest = publications[0].topic, publications[-1]
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
    payload = DataPayload(data={"topic": topic, "items": items, **lost})
    hops = noted(max(hops_in(one.body.get("metadata")) for one in publications))
    message = Message(id=name, target=TopicId.parse(topic), payload=payload, metadata=hops)
    told = {"topic": topic, "publication": str(newest.id), "message": name, "items": len(items), **lost, **hops}
    return Letter(name, message.model_dump(mode="json"), told)


# ---------------------------------------------------------------------------------------------- what came of them


def _settle(chosen: dict[UUID, list[Item]], given: Delivered, present: datetime) -> None:
    over = [item.id for follow_id in given.given for item in chosen[follow_id]]
    FeedItem.objects.filter(id__in=over).delete()
    own = [item.id for follow_id in given.own for item in chosen[follow_id]]
    forget(FeedItem.objects.filter(id__in=own), "they come from the run that would be told")
    move_up([*given.given, *given.own], present)
    put_off(given.busy, present + timedelta(seconds=conf.SWEEP_S))
    for until in set(given.resting.values()):
        put_off([follow_id for follow_id, at in given.resting.items() if at == until], until)
    # The longer one has not read, the less often it is looked at.
    _put_off_by_age(
        {follow_id: min(item.created_at for item in chosen[follow_id]) for follow_id in given.full}, present
    )
    _settle_failed({follow_id: chosen[follow_id] for follow_id in given.failed}, given, present)


def _put_off_by_age(since: dict[UUID, datetime], present: datetime) -> None:
    waits: dict[float, list[UUID]] = {}
    for follow_id, at in since.items():
        age = (present - at).total_seconds()
        wait = float(conf.SWEEP_S)
        while wait < min(age, LONGEST_S):
            wait *= 2
        waits.setdefault(min(wait, max(LONGEST_S, conf.SWEEP_S)), []).append(follow_id)
    for wait, follow_ids in waits.items():
        put_off(follow_ids, present + timedelta(seconds=wait))


def _put_off_undecided(undecided: dict[UUID, Exception], present: datetime) -> None:
    """The site's policy raises for their topics: nothing of those is given, nor given up, until it no longer does."""
    if not undecided:
        return
    topics = dict(Follow.objects.filter(id__in=undecided).values_list("topic", "id"))
    for topic, follow_id in topics.items():
        log.error(
            "topic %s: what waits for its followers is not delivered",
            topic,
            exc_info=undecided[follow_id],
            extra={"action": "fan_out.failed"},
        )
    rows = FeedItem.objects.filter(follow_id__in=undecided).values("follow_id").annotate(since=Min("created_at"))
    _put_off_by_age(dict(rows.order_by().values_list("follow_id", "since")), present)


def _settle_failed(failed: dict[UUID, list[Item]], given: Delivered, present: datetime) -> None:
    """Tried again ever later, some times; then given up, so that the follower's next ones come."""
    last: list[int] = []
    groups: dict[int, list[int]] = {}
    waits: dict[int, list[UUID]] = {}
    for follow_id, items in failed.items():
        error = given.failed[follow_id]
        log.warning("not delivered to follow %s: %s", follow_id, error, extra={"action": "fan_out.follower_failed"})
        for item in items:
            if item.tries + 1 >= TRIES:
                last.append(item.id)
            else:
                groups.setdefault(item.tries + 1, []).append(item.id)
        waits.setdefault(min(items[0].tries + 1, TRIES), []).append(follow_id)
    for tries, ids in groups.items():
        FeedItem.objects.filter(id__in=ids).update(tries=tries)
    forget(FeedItem.objects.filter(id__in=last), f"{TRIES} deliveries have failed")
    move_up(waits.get(TRIES, []), present)
    for tries, follow_ids in waits.items():
        wait = conf.SWEEP_S if tries == TRIES else min(conf.SWEEP_S * 2**tries, LONGEST_S)
        put_off(follow_ids, present + timedelta(seconds=wait))
