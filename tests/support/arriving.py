"""Messages and items that come while a run lives, as the site and other runs deliver them."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, DataPayload, Message, TopicId
from ravi_django.models import InboxMessage, JournalEntry, Run, uuid7
from tests.support.runs import drive, make_run
from tests.support.world import touch

TOPIC = TopicId("news", "tech")
NEW_ITEM = "new_feed_item"


def arrive(run: Run, body: Any, **fields: Any) -> Message:
    """Into the run's inbox: the run is locked first, as by every delivery."""
    if isinstance(body, Message):
        message = body
    else:
        payload = ChatPayload(message=ChatMessage.of("user", body)) if isinstance(body, str) else DataPayload(data=body)
        message = Message(target=AgentId.parse(run.agent), payload=payload, **fields)
    with transaction.atomic():
        touch([run.id])
        InboxMessage.objects.create(run=run, message_id=uuid7().hex, body=message.model_dump(mode="json"))
    return message


def publish(run: Run, data: dict[str, Any], *, topic: TopicId = TOPIC, woken: bool = True) -> str:
    """As the fan-out brings a publication to a live run. Returns the publication's id."""
    publication = uuid7()
    sender, note = AgentId("information", "news"), {"publication": str(publication)}
    message = Message(id=publication.hex, target=topic, sender=sender, payload=DataPayload(data=data), metadata=note)
    with transaction.atomic():
        touch([run.id])
        InboxMessage.objects.create(
            run=run, message_id=publication.hex, name=NEW_ITEM if woken else "", body=message.model_dump(mode="json")
        )
    return str(publication)


def logged(run: Run, name: str) -> list[Any]:
    """What the run's code has logged under this name, in every generation."""
    rows = JournalEntry.objects.filter(run_id=run.id, kind="log", name=name).order_by("seq")
    return list(rows.values_list("result", flat=True))


def begun(address: str, **fields: Any) -> Run:
    """An agent's run that began on an empty message and waits for news."""
    run = make_run(address, **fields)
    body = Message(target=AgentId.parse(address), payload=DataPayload()).model_dump(mode="json")
    InboxMessage.objects.filter(run=run).update(body=body)
    return drive(run)


def most_rows(run: Run) -> int:
    """Of a generation of the run, in its journal."""
    rows = JournalEntry.objects.filter(run=run)
    return max(rows.filter(generation=number).count() for number in range(run.generation + 1))
