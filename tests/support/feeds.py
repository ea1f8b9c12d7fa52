"""Followers and publications as the tests of the fan-out make them: many rows at once."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from django.db.models import F

from ravi_django import register
from ravi_django.kernel import DataPayload, Message, TopicId
from ravi_django.models import Follow, InboxMessage, Publication, Run, Session, uuid7
from tests.support import world
from tests.support.runs import CodeAgent

TOPIC = "news/tech"
FEED = "test/feed"
WAITS = [{"kind": "signal", "name": "new_feed_item", "until": None}]


@pytest.fixture(autouse=True)
def unhinted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the follows is there, and each test delivers by itself."""
    register(CodeAgent(print, key="feed"))  # type: ignore[arg-type]
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


def emit(*said: str, topic: str = TOPIC) -> None:
    """Published and delivered, one after the other."""
    for words in said:
        world.fan_out_run(publish(words, topic=topic).id)


def followers(count: int, *, agent: str = FEED, topic: str = TOPIC, **fields: Any) -> list[Follow]:
    """As many followers of a topic, each of a session of its own, idle."""
    sessions = Session.objects.bulk_create(Session(agent=agent) for _ in range(count))
    rows = [follow_row(agent, topic, session=session, home=session, **fields) for session in sessions]
    return Follow.objects.bulk_create(rows)


def follow_row(agent: str = FEED, topic: str = TOPIC, **fields: Any) -> Follow:
    """Not saved."""
    session = fields.get("session")
    owner = fields.get("owner")
    identity = world.follower_of(agent, owner and owner.pk, fields.get("tenant", ""), session and session.id)
    return Follow(id=uuid7(), agent=agent, topic=topic, follower=identity, **fields)


def follow(agent: str = FEED, topic: str = TOPIC, **fields: Any) -> Follow:
    row = follow_row(agent, topic, **fields)
    row.save(force_insert=True)
    return row


def waiting_runs(follows: list[Follow], **fields: Any) -> list[Run]:
    """For each follower a run that waits in its home."""
    fields = {"status": "suspended", "waiting_on": WAITS, **fields}
    return Run.objects.bulk_create(
        Run(agent=one.agent, session_id=one.home_id, owner_id=one.owner_id, tenant=one.tenant, **fields)
        for one in follows
    )


def publish(said: str = "hello", topic: str = TOPIC, **fields: Any) -> Publication:
    """To who follows now; not delivered yet."""
    key = uuid7()
    note = {"publication": str(key)}
    message = Message(target=TopicId.parse(topic), payload=DataPayload(data={"said": said}), metadata=note)
    tenant = fields.get("tenant", "")
    row = Publication(
        id=key,
        topic=topic,
        message_id=message.id,
        scope=world.scope_of(topic, tenant, "system", message.id),
        digest=sha256(said.encode()).hexdigest(),
        body=message.model_dump(mode="json"),
        **fields,
    )
    if (present := world.clock_fixed()) is not None:
        row.created_at = present
    return world.create_publication(row)[0]


def inboxes() -> dict[Any, list[str]]:
    """What each run was given, by its id: each message's own words, of a digest all of them."""
    found: dict[Any, list[str]] = {}
    for run_id, body in InboxMessage.objects.order_by("id").values_list("run_id", "body"):
        found.setdefault(run_id, []).append(words(body))
    return found


def words(body: dict[str, Any]) -> str:
    data = body["payload"].get("data", {})
    if "items" in data:
        return "+".join(item["payload"]["data"]["said"] for item in data["items"])
    return str(data.get("said", ""))


def announced(run: Run) -> int:
    """How many messages a run has of its feeds that it has not read."""
    return InboxMessage.objects.filter(run=run, name="new_feed_item", id__gt=F("run__read_upto")).count()


def read(run: Run) -> None:
    """The run reads its messages."""
    Run.objects.filter(id=run.id).update(read_upto=run.inbox.latest("id").id)
