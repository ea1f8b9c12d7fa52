"""Events as entries of a stream of Valkey or Redis."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError

from ravi_django.kernel import Event
from ravi_django.runtime.events.bus import Delivered

log = logging.getLogger("ravi.bus")

_BODY = b"e"

Rows = list[tuple[bytes, dict[bytes, bytes]]]


def key_of(topic: str) -> str:
    return f"ravi:bus:{topic}"


def fields_of(event: Event) -> dict[Any, Any]:
    return {_BODY: event.model_dump_json(include=set(Event.model_fields))}


def rows_of(found: Any) -> Rows:
    """Of the one stream that was asked for; redis-py gives a list, or a dict by its protocol."""
    if not found:
        return []
    if isinstance(found, dict):
        (rows,) = found.values()
        return rows[0] if rows and isinstance(rows[0], list) else rows
    return found[0][1]  # type: ignore[no-any-return]


def event_of(place: bytes, fields: dict[bytes, bytes] | None) -> Delivered | None:
    """None for what is no event: somebody else has written to our key, or it was trimmed."""
    try:
        event = Event.model_validate_json((fields or {})[_BODY])
    except (KeyError, ValidationError) as error:
        log.warning("entry %s of the event bus is no event: %s", place, error, extra={"action": "bus.no_event"})
        return None
    return Delivered(**{name: getattr(event, name) for name in Event.model_fields}, position=place.decode())
