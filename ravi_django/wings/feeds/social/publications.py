"""Publish to a topic: one row per message, in the caller's transaction. Its fan-out begins after the commit.

Topics belong to a tenant: only followers of the same tenant get the message. Agents publish by `calls`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from django.db.models import Exists, OuterRef

from ravi_django.agents.tools.delegate import LATE
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.append import append_rows, store_big_values
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.inbox import HOPS, STEERS, as_depth
from ravi_django.kernel import AgentId, ControlPayload, IdempotencyMismatchError, InvalidInputError, Message, TopicId
from ravi_django.kernel.checks import check_text
from ravi_django.kernel.json_values import check_json, digest_of, is_storable, storable
from ravi_django.kernel.messages import PayloadBase
from ravi_django.models import FeedItem, Follow, Publication, uuid7
from ravi_django.runs.checks import metadata_of, tenant_of
from ravi_django.runs.lifecycle.prune import delete_old
from ravi_django.runs.teams.messages import payload_of
from ravi_django.wings.feeds.social import fan_out
from ravi_django.wings.feeds.social.follows import owner_of, topic_of

MAX_ID = 200  # characters of a message id
# Publications in a row, each emitted because of the one before. Agents that follow each other in a circle would publish
# forever, and pay for it.
MAX_HOPS = 8
_NOT_PUBLISHED = (HOPS, STEERS, LATE)  # keys of a Message's metadata that the runtime itself sets


def emit(topic: TopicId | str, data: Any, *, user: Any = None, tenant: str = "", id: str | None = None) -> Publication:
    """Publish `data` to the present followers of `topic` in the tenant; returns its row at once. Inside the caller's
    transaction: rolled back with it, delivered after its commit.

    `data`: a text, JSON, or a Message, which keeps its id, correlation, causation and metadata. At most
    RAVI["MAX_INPUT_BYTES"] bytes as JSON. With an `id`, unique for the user and the topic, a repeated call publishes
    the message once.

    Raises InvalidInputError (with `field`), InputTooLargeError, and IdempotencyMismatchError when the id has another
    message; nothing is written then.
    """
    topic_id, owner = topic_of(topic), owner_of(user)
    key = None if id is None else checked_id(id)
    value = check_json("data", value_of(data), conf.MAX_INPUT_BYTES)
    message = message_for(topic_id, payload_for(data, value), data, key or uuid4().hex)
    publisher = "system" if owner is None else f"user:{owner.pk}"
    made = publication_of(message, tenant_of(tenant), publisher, key=key)
    made.owner = owner
    with transaction.atomic():
        row, new = create_publication(made)
        if new and row.last is not None:
            transaction.on_commit(partial(fan_out.hint, row.id), robust=True)
    return row


def message_for(
    topic: TopicId,
    payload: PayloadBase,
    data: Any,
    message_id: str,
    sender: AgentId | None = None,
    correlation_id: str = "",
    causation_id: str | None = None,
) -> Message:
    """The message that followers get. If `data` is a Message, its id, correlation, causation and metadata stay. Raises
    InvalidInputError."""
    template = data if isinstance(data, Message) else Message(id=message_id, target=topic, payload=payload)
    return Message(
        id=checked_id(template.id),
        target=topic,
        sender=sender,  # also for the limits of its user: nobody names another
        payload=payload,
        correlation_id=check_text("correlation_id", template.correlation_id or correlation_id, MAX_ID, least=0),
        causation_id=template.causation_id or causation_id,
        metadata={name: value for name, value in metadata_of(template.metadata).items() if name not in _NOT_PUBLISHED},
    )


def publication_of(
    message: Message, tenant: str, publisher: str, depth: int = 0, key: str | None = None
) -> Publication:
    """A publication that is not saved. `key` identifies it in place of the message's id."""
    publication_id, topic = uuid7(), str(message.target)
    note = {"publication": str(publication_id), **as_depth(depth)}  # the message id is unique for its publisher only
    message = message.model_copy(update={"metadata": {**message.metadata, **note}})
    body = storable(message.model_dump(mode="json"))
    return Publication(
        id=publication_id,
        topic=topic,
        tenant=tenant,
        message_id=message.id,
        scope=scope_of(topic, tenant, publisher, key or message.id),
        digest=digest_of(body["payload"]),
        body=body,
    )


def value_of(data: Any) -> Any:
    content = data.payload if isinstance(data, Message) else data
    return content.model_dump(mode="json") if isinstance(content, PayloadBase) else content


def payload_for(data: Any, value: Any) -> PayloadBase:
    """The payload that followers get; `value` is `data` as plain JSON. Raises InvalidInputError."""
    if isinstance(data, Message | PayloadBase):
        payload = type(data.payload if isinstance(data, Message) else data).model_validate(value)
    else:
        is_text = isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], str)
        payload = payload_of(value["text"] if is_text else value)
    if isinstance(payload, ControlPayload):
        raise InvalidInputError("a control message is sent to one run, not emitted; use ctx.send", field="data")
    return payload


def checked_id(id: Any) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not is_storable(id):
        raise InvalidInputError(f"id must be a string of 1 to {MAX_ID} characters, none of them NUL", field="id")
    return id


def scope_of(topic: str, tenant: str, publisher: str, message_id: str) -> str:
    """A message id is unique for its publisher, topic and tenant."""
    return hashlib.sha256("\0".join((topic, tenant, publisher, message_id)).encode()).hexdigest()


def publish(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, publication: Publication) -> int:
    """Record an emit with its publication. The last entry gets the publication's id and its number of followers, or
    the error that the message id belongs to another message."""
    emitted = entries[-1]
    with transaction.atomic():
        # Before the fence, whose row holds the result: nobody has locked a new publication and waits for this run.
        try:
            row, new = create_publication(publication)
            emitted.request = {**emitted.request, "publication": str(row.id), "followers": row.followers, "new": new}
        except IdempotencyMismatchError as error:
            emitted.result, emitted.error = None, {"type": type(error).__name__, "message": str(error)}
        store_big_values(entries)
        return append_rows(lease, entries, turns)


def create_publication(publication: Publication) -> tuple[Publication, bool]:
    """Write a publication for the present followers, in the caller's transaction; (the row, whether it is new). Raises
    IdempotencyMismatchError when its scope has another message."""
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


def prune(older_than_s: float, dry_run: bool) -> int:
    """Delete those that are delivered, and wait in no digest. Their message ids are free again."""
    waiting = FeedItem.objects.filter(publication_id=OuterRef("id"))
    rows = Publication.objects.filter(~Exists(waiting), done_at__lt=clock.after(-older_than_s))
    return delete_old(rows, dry_run)
