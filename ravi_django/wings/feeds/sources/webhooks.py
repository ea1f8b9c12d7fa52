"""Webhooks: JSON that another server posts here, signed with a secret of the source.

A row holds at most two secrets, encrypted, the newest first, so that a sender can change its secret without
interruption.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.urls import NoReverseMatch
from django.utils import timezone

from ravi_django import events
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.outbox import TOPIC
from ravi_django.kernel import Event, IllegalTransitionError, InvalidInputError, NotFoundError
from ravi_django.kernel.json_values import read_json, storable
from ravi_django.models import Run, Source
from ravi_django.people import mail
from ravi_django.runs import signals
from ravi_django.sealing import opened, seal
from ravi_django.wings.feeds.fetching import adapter, signatures
from ravi_django.wings.feeds.sources import items
from ravi_django.wings.feeds.sources.delivery import Delivery, deliver

VALID = 2
CLOSED = "The secret cannot be decrypted: add the old SECRET_KEY to SECRET_KEY_FALLBACKS, or create another secret."
_NOBODYS = base64.urlsafe_b64encode(b"\x80" + bytes(88)).decode()  # the check of an unknown source takes as long


def secrets_of(source: Source | None) -> list[str]:
    """The secrets of an enabled webhook, else none. A secret that cannot be decrypted sets the source's `error`."""
    if source is None or source.kind != Source.Kind.WEBHOOK or not source.enabled or not source.secret:
        opened(_NOBODYS)
        return []
    valid = [secret for sealed in source.secret.split(",") if (secret := opened(sealed)) is not None]
    if not valid:
        Source.objects.filter(id=source.id).exclude(error=CLOSED).update(error=CLOSED)
    return valid


def rekey() -> tuple[int, list[str]]:
    """Encrypt every secret with the key of SECRET_KEY. Returns the number of rows, and the faults of those that cannot
    be decrypted: they stay unchanged."""
    written = 0
    closed: list[str] = []
    for source_id in list(Source.objects.exclude(secret="").order_by("id").values_list("id", flat=True)):
        with transaction.atomic():
            row = lock_hook(source_id)
            if row is None:
                continue
            valid = [secret for part in row.secret.split(",") if (secret := opened(part)) is not None]
            if len(valid) <= row.secret.count(","):
                closed.append(f"source {source_id}: {CLOSED}")
                continue
            Source.objects.filter(id=source_id).update(secret=",".join(map(seal, valid)))
            written += 1
    return written, closed


def lock_hook(source_id: UUID) -> Source | None:
    rows = Source.objects.select_for_update(no_key=True, of=("self",))
    return rows.filter(id=source_id, kind=Source.Kind.WEBHOOK).first()


class UnsignedError(Exception):
    """No valid signature, or no enabled webhook: an unsigned request does not learn which sources there are."""


class NotTakenError(Exception):
    """The items cannot be delivered now, and the source's `error` gives the reason. The sender should try again."""

    def __init__(self, again_in_s: float = 0.0) -> None:
        self.again_in_s = again_in_s  # 0: not known
        super().__init__()


def receive(source_id: UUID, headers: Mapping[str, str], body: bytes) -> tuple[int, Delivery]:
    """Deliver the items of a webhook request to the source's agent. Returns their number and the result.

    Raises UnsignedError; InvalidInputError and InputTooLargeError, which name the field; NotTakenError.
    """
    if not any(headers.get(header) for header in signatures.SCHEMES.values()):
        raise UnsignedError
    source = Source.objects.filter(id=source_id).first()
    known = secrets_of(source)
    scheme = str(source.options.get("scheme", signatures.RAVI)) if source is not None else signatures.RAVI
    now = (clock.fixed() or timezone.now()).timestamp()
    if not signatures.is_signed(scheme, headers, body, known, now) or source is None:
        raise UnsignedError
    items = adapter.items_in(_parsed(body), source.options)
    result = deliver(source, items, signed_at=signatures.signed_at(scheme, headers))
    if result.error:
        raise NotTakenError(result.again_in_s)
    Source.objects.filter(id=source.id).update(checked_at=clock.now(), error="", failures=0)
    return len(items), result


def make_secret(source: Source | UUID) -> str:
    """Create a secret of a webhook; it is not shown again. The previous one stays valid until the next call, or
    `forget_old_secret`. Raises NotFoundError if the source is not a webhook."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        row = lock_hook(_id(source))
        if row is None:
            raise NotFoundError("there is no such webhook")
        stored = [seal(secret), *row.secret.split(",")][:VALID]
        Source.objects.filter(id=row.id).update(secret=",".join(filter(None, stored)))
    return secret


def forget_old_secret(source: Source | UUID) -> bool:
    """Revoke the older of two valid secrets. Returns False if there was only one."""
    with transaction.atomic():
        row = lock_hook(_id(source))
        if row is None or "," not in row.secret:
            return False
        Source.objects.filter(id=row.id).update(secret=row.secret.split(",")[0])
    return True


def path_of(source: Source | UUID) -> str:
    """The path of the webhook's URL; empty if the app's URLs are not mounted."""
    try:
        return mail.path_to("source-hook", id=_id(source))
    except NoReverseMatch:
        return ""


def _id(source: Source | UUID) -> UUID:
    return source if isinstance(source, UUID) else source.id


def _parsed(body: bytes) -> Any:
    try:
        return storable(read_json(body, texts=False))
    except InvalidInputError as error:
        error.field = error.field or "body"
        raise
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}", field="body") from None


async def feed_agent(
    run: Run | UUID | str,
    *,
    topic: str = TOPIC,
    types: str = "*",
    signal: str = "new_source_item",
    group: str | None = None,
    after: str | None = None,
) -> str:
    """Send a run, such as an InformationAgent's, each event of these types as a signal, once. The signal's payload is
    the event as JSON. Events about runs of its tree, or of its agent, are skipped: otherwise each would cause the next.

    While the run has RAVI["SOURCE_UNREAD"] of these signals unread, the events wait on the bus.

    The default group is `agent:<run>`, so that a restart continues at the same event. Returns the subscription's id;
    events for a run that has ended are ignored.
    """
    run_id = str(run.id if isinstance(run, Run) else run)
    tree, agent = (str(run.tree_id), run.agent) if isinstance(run, Run) else await sync_to_async(_read_run)(run_id)

    async def send(event: Event) -> None:
        if tree not in (event.correlation_id, event.data.get("root")) and event.data.get("agent") != agent:
            await sync_to_async(_signal)(run_id, signal, event)

    return await events.get_bus().subscribe(topic, send, types=types, group=group or f"agent:{run_id}", after=after)


def _read_run(run_id: str) -> tuple[str, str | None]:
    close_old_connections()
    run = Run.objects.only("root", "agent").filter(id=run_id).first()
    return (run_id, None) if run is None else (str(run.tree_id), run.agent)


def _signal(run_id: str, name: str, event: Event) -> None:
    payload: dict[str, Any] = event.model_dump(mode="json", include=set(Event.model_fields))
    close_old_connections()  # or a restart of the database would fail every event after it
    if items.is_full(run_id, name):
        raise events.NotYet(f"run {run_id} has RAVI['SOURCE_UNREAD'] signals {name} unread")
    with suppress(IllegalTransitionError):
        signals.signal(run_id, name, payload, key=f"event:{event.id}"[:64])
