"""Webhooks: JSON that another server posts here, signed with a secret of the source."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.urls import NoReverseMatch
from django.utils import timezone

from ravi_django.capabilities.feeds import fields, signatures
from ravi_django.db import transaction
from ravi_django.kernel import InvalidInputError, NotFoundError
from ravi_django.kernel.json_values import read_json, storable
from ravi_django.models import Source
from ravi_django.runtime.db import clock
from ravi_django.runtime.people import links
from ravi_django.runtime.sources.delivery import Delivery, deliver
from ravi_django.runtime.sources.saves import record_result
from ravi_django.runtime.sources.secrets import VALID, lock_hook, seal, secrets_of


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
    items = fields.items_in(_parsed(body), source.options)
    result = deliver(source, items, signed_at=signatures.signed_at(scheme, headers))
    if result.error:
        raise NotTakenError(result.again_in_s)
    record_result(source.id)
    return len(items), result


def make_secret(source: Source | UUID) -> str:
    """Create a secret of a webhook; it is not shown again. The previous one stays valid until the next call, or
    `forget_old_secret`. Raises NotFoundError if the source is not a webhook."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        row = lock_hook(_id(source))
        if row is None:
            raise NotFoundError("there is no such webhook")
        kept = [seal(secret), *row.secret.split(",")][:VALID]
        Source.objects.filter(id=row.id).update(secret=",".join(filter(None, kept)))
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
        return links.path_to("source-hook", id=_id(source))
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
