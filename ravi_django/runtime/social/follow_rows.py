"""The rows of follows. A follow is one row per agent, owner, tenant and topic, and per session where one is given; a
unique constraint guards it against calls at the same time.

A run's row is locked before a follow's, here as in the fan-out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from ravi_django.db import transaction
from ravi_django.models import ACTIVE, FeedItem, Follow, Run
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.append import appending
from ravi_django.runtime.journal.lease import Lease

PAGE = 1000


def follower_of(agent: str, owner_id: Any, tenant: str, session_id: UUID | None = None) -> str:
    """The identity that follows a topic at most once."""
    own = (agent, "" if owner_id is None else owner_id, tenant, session_id or "")
    return hashlib.sha256("\0".join(map(str, own)).encode()).hexdigest()


@appending
def follow(lease: Lease, *, follow: Follow) -> None:
    """Write the follow of a run's agent with its journal row. Agents repeat their follows: that is one query, behind
    the fence."""
    changes_every = follow.every_s > 0
    found = known(follow).first()
    if found is None or changes_of(found, follow, every_s=changes_every):
        add_follow(follow, every_s=changes_every)


@appending
def unfollow(lease: Lease, *, follower: str, topic: str) -> None:
    """Delete the follow of a run's agent with its journal row."""
    remove_follow(follower, topic)


def add_follow(follow: Follow, *, metadata: bool = False, every_s: bool = False) -> tuple[Follow, bool]:
    """Write a follow in the caller's transaction; (the row, whether it is new). An existing row takes the fields that
    the flags name, and the home when its own has no active run of the agent. A new follow without a home gets that of
    the follower's other topics."""
    if follow.home_id is None:
        same = Follow.objects.filter(follower=follow.follower, home__isnull=False)
        follow.home_id = same.order_by("id").values_list("home_id", flat=True).first()
    while True:
        with transaction.atomic():
            Follow.objects.bulk_create([clock.stamp(follow)], ignore_conflicts=True)
            found = known(follow).first()
            if found is None:  # deleted between the two
                continue
            if found.id == follow.id:
                return found, True
            if changes := changes_of(found, follow, metadata=metadata, every_s=every_s):
                Follow.objects.filter(id=found.id).update(**changes)
                for name, value in changes.items():
                    setattr(found, name, value)
            return found, False


def known(follow: Follow) -> Any:
    """The row of this follower and topic with its owner. `at_home`: its home has an active run of the agent."""
    at_home = Run.objects.filter(
        session_id=OuterRef("home_id"), agent=OuterRef("agent"), parent=None, status__in=ACTIVE
    )
    rows = Follow.objects.filter(follower=follow.follower, topic=follow.topic).select_related("owner")
    return rows.annotate(at_home=Exists(at_home))


def changes_of(found: Any, wanted: Follow, *, metadata: bool = False, every_s: bool = False) -> dict[str, Any]:
    """The fields of a row of `known` that following again changes."""
    changes: dict[str, Any] = {}
    if wanted.home_id is not None and found.home_id != wanted.home_id and not found.at_home:
        changes["home_id"] = wanted.home_id
    if metadata and found.metadata != wanted.metadata:
        changes["metadata"] = wanted.metadata
    if every_s and found.every_s != wanted.every_s:
        changes["every_s"] = wanted.every_s
    return changes


def remove_follow(follower: str, topic: str) -> bool:
    """Delete a follow with its waiting items, in the caller's transaction; whether there was one."""
    return bool(delete_follows(Follow.objects.filter(follower=follower, topic=topic)))


def delete_follows(follows: QuerySet[Follow]) -> int:
    """Delete follows with their waiting items, after a fan-out that has locked one of them. Returns their number."""
    with transaction.atomic():
        ids = list(follows.order_by("id").select_for_update().values_list("id", flat=True))
        FeedItem.objects.filter(follow_id__in=ids).delete()
        Follow.objects.filter(id__in=ids).delete()
        return len(ids)


def followers(topic: str, tenant: str = "", *, after: UUID | None = None, limit: int | None = None) -> Iterator[Follow]:
    """The follows of a topic with an id above `after`, in that order; read page by page."""
    while limit is None or limit > 0:
        rows = Follow.objects.filter(topic=topic, tenant=tenant)
        if after is not None:
            rows = rows.filter(id__gt=after)
        page = list(rows.order_by("id")[: PAGE if limit is None else min(PAGE, limit)])
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id
        limit = None if limit is None else limit - len(page)
