"""Follow topics from a site's own code: add, remove and list follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from ravi_django import access
from ravi_django.kernel import Agent, AgentId, ForbiddenError, InvalidInputError, TopicId
from ravi_django.kernel.checks import check_whole, seconds_of
from ravi_django.models import Follow, Session, uuid7
from ravi_django.runs import sessions
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import (
    address_of,
    conversation_of,
    metadata_of,
    owner_of as checked_owner,
    tenant_of,
)
from ravi_django.wings.feeds.social import follow_rows

MAX_EVERY_S = 366 * 24 * 3600


def follow(
    agent: Agent | AgentId | str,
    topic: TopicId | str,
    *,
    user: Any = None,
    tenant: str = "",
    session: Session | UUID | str | None = None,
    every_s: int | timedelta = 0,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Follow, bool]:
    """Have `agent` follow `topic` (`type/source`) for `user`; (the follow, whether it is new). Inside the caller's
    transaction.

    With `session` (as for `submit`), only that conversation follows. Following again returns the same row, with the
    new `every_s` and `metadata`. `every_s`: deliver once in so many seconds or a timedelta at most, all in one message;
    0 leaves it as it is, and is "at once" for a new follow. `metadata`: of the runs that deliveries start, as for
    `submit`.

    Raises InvalidInputError (with `field`), AgentNotFoundError, SessionNotFoundError and, where the site's policy
    refuses, ForbiddenError; nothing is written then.
    """
    return add(agent, topic, user=user, tenant=tenant, session=session, every_s=every_s or None, metadata=metadata)


def add(
    agent: Agent | AgentId | str,
    topic: TopicId | str,
    *,
    user: Any,
    tenant: str,
    session: Session | UUID | str | None,
    every_s: int | timedelta | None,
    metadata: Mapping[str, Any] | None,
) -> tuple[Follow, bool]:
    """`follow`, where None leaves `every_s` as it is, and 0 changes it."""
    conversation = conversation_of(session, owner_of(user), tenant_of(tenant))
    row = _row(agent, topic, user, tenant, conversation)
    row.every_s, row.metadata = check_whole("every_s", seconds_of(every_s) or 0, 0, MAX_EVERY_S), metadata_of(metadata)
    runnable = specs.find(row.agent)
    runnable.check_variables(row.metadata)
    access.check_follow(owner_of(user), runnable, topic_of(topic))
    if (stored := sessions.stored(conversation, row.agent)) is not conversation:
        return add(agent, topic, user=user, tenant=tenant, session=stored, every_s=every_s, metadata=metadata)
    return follow_rows.add_follow(row, metadata=metadata is not None, every_s=every_s is not None)


def unfollow(
    agent: Agent | AgentId | str,
    topic: TopicId | str,
    *,
    user: Any = None,
    tenant: str = "",
    session: Session | UUID | str | None = None,
) -> bool:
    """Delete the follow of exactly this agent, user, tenant and session with its waiting items; whether there was one.
    Inside the caller's transaction.

    Raises InvalidInputError (with `field`) and SessionNotFoundError.
    """
    row = _row(agent, topic, user, tenant, session)
    return follow_rows.remove_follow(row.follower, row.topic)


def followers(
    topic: TopicId | str, tenant: str = "", after: UUID | None = None, limit: int | None = None
) -> Iterator[Follow]:
    """The follows of a topic with an id above `after`, in that order, at most `limit`; read page by page."""
    return follow_rows.followers(str(topic_of(topic)), tenant_of(tenant), after=after, limit=limit)


def _row(agent: Any, topic: Any, user: Any, tenant: str, session: Session | UUID | str | None) -> Follow:
    address, owner = str(address_of(agent)), owner_of(user)
    conversation = conversation_of(session, owner, tenant_of(tenant))
    if conversation is not None and conversation.tenant and tenant and tenant != conversation.tenant:
        raise InvalidInputError(f"session {conversation.id} is of another tenant than {tenant!r}", field="session")
    row_tenant = tenant_of(tenant) or (conversation.tenant if conversation else "")
    session_id = conversation.id if conversation else None
    owner_id = None if owner is None else owner.pk
    return row_of(address, topic_of(topic), owner_id, row_tenant, session_id=session_id, home_id=session_id)


def row_of(
    agent: str, topic: TopicId, owner_id: Any, tenant: str, *, session_id: UUID | None, home_id: UUID | None
) -> Follow:
    """An unsaved follow."""
    return Follow(
        id=uuid7(),
        agent=agent,
        topic=str(topic),
        owner_id=owner_id,
        tenant=tenant,
        session_id=session_id,
        home_id=home_id,
        follower=follow_rows.follower_of(agent, owner_id, tenant, session_id),
    )


def topic_of(topic: TopicId | str) -> TopicId:
    """A topic from `type`, `type/source` or `namespace/type/source`. Raises InvalidInputError for the field `topic`."""
    if isinstance(topic, TopicId):
        return topic
    try:
        return TopicId(topic) if isinstance(topic, str) and "/" not in topic else TopicId.parse(topic)
    except InvalidInputError as error:
        raise InvalidInputError(f"topic: {error}", field="topic") from None


def owner_of(user: Any) -> Any:
    """None is the site itself. Raises ForbiddenError for an anonymous user."""
    if user is not None and checked_owner(user) is None:
        raise ForbiddenError("an anonymous user may neither follow nor emit")
    return user
