"""Webhooks: what somebody else's server posts here, signed with a secret of this source."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from django.urls import NoReverseMatch
from pydantic_core import from_json

from ravi_django.capabilities.feeds import fields, signatures
from ravi_django.kernel import InvalidInputError, NotFoundError
from ravi_django.models import Source
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.entries import storable
from ravi_django.runtime.people import links
from ravi_django.runtime.sources.saves import heard
from ravi_django.runtime.sources.secrets import add_secret, drop_old_secret, find_hook, secrets_of
from ravi_django.runtime.sources.telling import Told, tell


class UnsignedError(Exception):
    """Not signed by whom this source knows; also when there is no such source, or it is no webhook or switched off:
    who cannot sign learns nothing of what there is."""


class NotTakenError(Exception):
    """The agent cannot be told just now, and the source's `error` says why: the sender is to try again."""

    def __init__(self, again_in_s: float = 0.0) -> None:
        self.again_in_s = again_in_s  # 0: not known
        super().__init__()


def receive(source_id: UUID, headers: Mapping[str, str], body: bytes) -> tuple[int, Told]:
    """Tell a source's agent what was posted: the number of items in the body, and what became of them.

    Raises UnsignedError; InvalidInputError and InputTooLargeError, which name the field; NotTakenError.
    """
    if not any(headers.get(header) for header in signatures.SCHEMES.values()):
        raise UnsignedError
    source = find_hook(source_id)
    known = secrets_of(source)
    scheme = str(source.options.get("scheme", signatures.RAVI)) if source is not None else signatures.RAVI
    if not signatures.is_signed(scheme, headers, body, known, _now()) or source is None:
        raise UnsignedError
    items = fields.items_in(_parsed(body), source.options)
    told = tell(source, items, signed_at=signatures.signed_at(scheme, headers))
    if told.error:
        raise NotTakenError(told.again_in_s)
    heard(source.id)
    return len(items), told


def make_secret(source: Source | UUID) -> str:
    """A new secret of a webhook, which is shown to nobody again. The one before it stays valid until the next one
    is made, or `forget_old_secret`. Raises NotFoundError when the source is no webhook."""
    secret = secrets.token_urlsafe(32)
    if not add_secret(_id(source), secret):
        raise NotFoundError("there is no such webhook")
    return secret


def forget_old_secret(source: Source | UUID) -> bool:
    """End the time in which two secrets are valid. False: there was one alone."""
    return drop_old_secret(_id(source))


def path_of(source: Source | UUID) -> str:
    """Where to post to, below the site's address; empty where the app's addresses are not mounted."""
    try:
        return links.path_to("source-hook", id=_id(source))
    except NoReverseMatch:
        return ""


def _id(source: Source | UUID) -> UUID:
    return source if isinstance(source, UUID) else source.id


def _now() -> float:
    present = clock.fixed()
    return time.time() if present is None else present.timestamp()


def _parsed(body: bytes) -> Any:
    try:
        parsed = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}", field="body") from None
    if (place := next(_infinite(parsed), None)) is not None:
        raise InvalidInputError("the number is larger than any that is kept", field=place or "body")
    return storable(parsed)


def _infinite(value: Any, place: str = "") -> Iterator[str]:
    """Where numbers like 1e999 lie: they are JSON, and no number of ours."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield from _infinite(inner, f"{place}.{name}" if place else str(name))
