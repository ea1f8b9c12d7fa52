"""The social graph, for a site's own code: who follows a topic, and publishing to it. `graph` is the same for agents.

Topics are a tenant's own: what is emitted goes to the followers of the same tenant, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import from_json, to_json

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import (
    Agent,
    AgentId,
    ControlPayload,
    ForbiddenError,
    InputTooLargeError,
    InvalidInputError,
    Message,
    TopicId,
)
from ravi_django.kernel.canonical import digest_of
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.messages import PayloadBase
from ravi_django.models import Follow, Publication, Session, uuid7
from ravi_django.runtime import fan_out, specs
from ravi_django.runtime.addressing import payload_of
from ravi_django.runtime.entries import is_storable
from ravi_django.runtime.hops import noted
from ravi_django.runtime.store import follows, publications
from ravi_django.runtime.submit import _address_of, _metadata, _session, _tenant

MAX_ID = 200  # characters of a message id
MAX_EVERY_S = 366 * 24 * 3600
# Publications that each follow from the one before. Agents that follow each other in a circle would publish for ever,
# and pay for it; of those that go one way, a handful stand in a row.
MAX_HOPS = 8


# ----------------------------------------------------------------------------------------------------- following


def follow(
    agent: Agent | AgentId | str,
    topic: TopicId | str,
    *,
    user: Any = None,
    tenant: str = "",
    session: Session | UUID | str | None = None,
    every_s: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Follow, bool]:
    """Have `agent` follow `topic` (`type/source`) for `user`; (the follow, whether it is new). Inside the caller's
    transaction.

    It is the agent's and the user's, and with `session` of that conversation alone. Following again gives the same
    row, with the `every_s` and the `metadata` that are given now. `every_s`: deliver at most once in so many seconds,
    all in one message; 0 leaves it as it is, at first each at once. `metadata` is that of the runs which deliveries
    start, as `submit` takes it.

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
    every_s: int | None,
    metadata: Mapping[str, Any] | None,
) -> tuple[Follow, bool]:
    """`follow`, where an `every_s` of 0 is one that was given."""
    row = _row(agent, topic, user, tenant, session)
    row.every_s, row.metadata = check_whole("every_s", every_s or 0, 0, MAX_EVERY_S), _metadata(metadata)
    found = specs.find(row.agent)
    found.check_variables(row.metadata)
    access.check_follow(owner_of(user), found, topic_of(topic))
    return follows.add_follow(row, metadata=metadata is not None, every_s=every_s is not None)


def unfollow(
    agent: Agent | AgentId | str,
    topic: TopicId | str,
    *,
    user: Any = None,
    tenant: str = "",
    session: Session | UUID | str | None = None,
) -> bool:
    """Delete the follow of exactly this agent, user, tenant and session, and what it was still to be given; whether
    there was one. Inside the caller's transaction.

    Raises InvalidInputError (with `field`) and SessionNotFoundError.
    """
    row = _row(agent, topic, user, tenant, session)
    return follows.remove_follow(row.follower, row.topic)


def followers(
    topic: TopicId | str, tenant: str = "", after: UUID | None = None, limit: int | None = None
) -> Iterator[Follow]:
    """The follows of a topic in the order of their ids, those beyond the id `after`, at most `limit`. They are read
    page by page, however many there are."""
    return follows.followers(str(topic_of(topic)), _tenant(tenant), after=after, limit=limit)


def _row(agent: Any, topic: Any, user: Any, tenant: str, session: Session | UUID | str | None) -> Follow:
    try:
        address = str(_address_of(agent))
    except InvalidInputError as error:
        raise InvalidInputError(str(error), field="agent") from None
    owner = owner_of(user)
    own = _session(session, owner)
    if own is not None and own.tenant and tenant and tenant != own.tenant:
        raise InvalidInputError(f"session {own.id} is of another tenant than {tenant!r}", field="session")
    place = _tenant(tenant) or (own.tenant if own else "")
    session_id = own.id if own else None
    owner_id = None if owner is None else owner.pk
    return row_of(address, topic_of(topic), owner_id, place, session_id=session_id, home_id=session_id)


def row_of(
    agent: str, topic: TopicId, owner_id: Any, tenant: str, *, session_id: UUID | None, home_id: UUID | None
) -> Follow:
    """A follow that is not saved."""
    return Follow(
        id=uuid7(),
        agent=agent,
        topic=str(topic),
        owner_id=owner_id,
        tenant=tenant,
        session_id=session_id,
        home_id=home_id,
        follower=follows.follower_of(agent, owner_id, tenant, session_id),
    )


# ---------------------------------------------------------------------------------------------------- publishing


def emit(topic: TopicId | str, data: Any, *, user: Any = None, tenant: str = "", id: str | None = None) -> Publication:
    """Publish `data` to those of the tenant who follow `topic` now; returns its row at once. Inside the caller's
    transaction: rolled back with it, delivered after its commit.

    `data`: a text, or JSON; a Message gives its payload. At most RAVI["MAX_INPUT_BYTES"] bytes as JSON. `id`, of the
    user's own on this topic, makes it safe to repeat: the same message is published once.

    Raises InvalidInputError (with `field`), InputTooLargeError, and IdempotencyMismatchError when the id has another
    message; nothing is written then.
    """
    place, owner = topic_of(topic), owner_of(user)
    message_id = uuid4().hex if id is None else checked_id(id)
    try:
        value = from_json(to_json(value_of(data)))
    except ValueError as error:
        raise InvalidInputError(f"data is not JSON: {error}", field="data") from None
    if not is_storable(value):
        raise InvalidInputError("data holds a NUL character, or a number that no database can store", field="data")
    payload = payload_for(data, value)
    made = publication_of(place, payload, message_id, _tenant(tenant), publisher_of(owner))
    made.owner = owner
    with transaction.atomic():
        row, new = publications.create_publication(made)
        if new and row.last is not None:
            transaction.on_commit(partial(fan_out.hint, row.id), robust=True)
    return row


def publication_of(
    topic: TopicId,
    payload: PayloadBase,
    message_id: str,
    tenant: str,
    publisher: str,
    sender: AgentId | None = None,
    hops: int = 0,
) -> Publication:
    """A publication that is not saved."""
    own = uuid7()
    note = {"publication": str(own), **noted(hops)}  # the message's id is its publisher's alone
    message = Message(id=message_id, target=topic, sender=sender, payload=payload, metadata=note)
    body = message.model_dump(mode="json")
    return Publication(
        id=own,
        topic=str(topic),
        tenant=tenant,
        message_id=message_id,
        scope=publications.scope_of(str(topic), tenant, publisher, message_id),
        digest=digest_of(body["payload"]),
        body=body,
    )


def publisher_of(owner: Any) -> str:
    return "system" if owner is None else f"user:{owner.pk}"


# --------------------------------------------------------------------------------------------------- what was given


def topic_of(given: TopicId | str) -> TopicId:
    """A topic from its text, `type/source` or `namespace/type/source`; a type alone is its source "default", as of
    TopicId. Raises InvalidInputError for the field `topic`."""
    if isinstance(given, TopicId):
        return given
    try:
        return TopicId(given) if isinstance(given, str) and "/" not in given else TopicId.parse(given)
    except InvalidInputError as error:
        raise InvalidInputError(f"topic: {error}", field="topic") from None


def value_of(data: Any) -> Any:
    """What is published of `data`."""
    given = data.payload if isinstance(data, Message) else data
    return given.model_dump(mode="json") if isinstance(given, PayloadBase) else given


def payload_for(data: Any, value: Any) -> PayloadBase:
    """What followers are given of `data`, whose value as plain JSON is `value`. Raises InvalidInputError,
    InputTooLargeError."""
    if isinstance(data, Message | PayloadBase):
        payload = type(data.payload if isinstance(data, Message) else data).model_validate(value)
    else:
        payload = payload_of(value["text"] if _is_text(value) else value)
    if isinstance(payload, ControlPayload):
        raise InvalidInputError("a control message is sent to one run, not emitted; use ctx.send", field="data")
    if (size := len(to_json(value))) > conf.MAX_INPUT_BYTES:
        raise InputTooLargeError(f"data has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="data")
    return payload


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], str)


def checked_id(id: Any) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not is_storable(id):
        raise InvalidInputError(f"id must be a string of 1 to {MAX_ID} characters, none of them NUL", field="id")
    return id


def owner_of(user: Any) -> Any:
    """None is the site itself. Raises ForbiddenError for a user who is not logged in."""
    if user is not None and not user.is_authenticated:
        raise ForbiddenError("an anonymous user may neither follow nor emit")
    return user
