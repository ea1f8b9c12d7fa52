"""Journal rows on their way in and out of the database."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_json

from ravi_django.agents.memory.transcript import keeps_of
from ravi_django.conf import conf
from ravi_django.kernel import ChatMessage, InvalidInputError, Usage
from ravi_django.models import Blob, JournalEntry, Phase, uuid7

BLOB_KEY = "$blob"  # {"$blob": sha256, "size": bytes} stands for a value that lies in Blob
SCHEMA = 1  # version of the payloads' form


@dataclass(slots=True)
class Entry:
    """A row to append. Times are given by the database: finished now, started `elapsed_s` before."""

    kind: str
    path: str
    name: str = ""
    phase: str = "result"
    attempt: int = 1
    request: Any = None
    result: Any = None
    error: dict[str, Any] | None = None
    digests: dict[str, Any] | None = None
    usage: Usage | None = None
    cost: float | None = None
    inbox_upto: int | None = None
    elapsed_s: float = 0.0
    id: UUID = field(default_factory=uuid7)
    stored: dict[str, str] = field(default_factory=dict)  # request and result as the row has them; see `externalize`
    blobs: list[Blob] = field(default_factory=list)  # bodies that the row's digests name: written before it

    @property
    def is_effect(self) -> bool:
        return self.kind in ("llm.call", "tool.call")


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A history turn to write with the next append."""

    session_id: UUID
    agent: str
    message: ChatMessage

    @property
    def keeps(self) -> int | None:
        """Of a summary: how many turns right before it it does not stand for."""
        return keeps_of(self.message)


@dataclass(slots=True)
class Recorded:
    """A row as replay reads it."""

    seq: int
    path: str
    attempt: int
    phase: str
    kind: str
    name: str
    request: Any
    digests: dict[str, Any] | None
    result: Any
    error: dict[str, Any] | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost: Any
    inbox_upto: int | None
    started_at: datetime
    finished_at: datetime
    schema: int = SCHEMA

    FIELDS = (
        "seq",
        "path",
        "attempt",
        "phase",
        "kind",
        "name",
        "request",
        "digests",
        "result",
        "error",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
        "cost",
        "inbox_upto",
        "started_at",
        "finished_at",
        "schema",
    )

    @property
    def usage(self) -> Usage:
        return Usage.of(self)


def dumps(value: Any) -> str | None:
    """JSON text of a column; None stays NULL."""
    return None if value is None else encode(value).decode()


# What may stand for a value that no row can hold: NUL, and numbers that JSON has no words for.
_SUSPECT = (b"\\u0000", b"NaN", b"Infinity")


def encode(value: Any) -> bytes:
    """JSON as every database can hold it; what is no JSON goes in as its text."""
    try:
        body = to_json(value, fallback=str)
    except ValueError:  # half a surrogate pair
        return to_json(storable(value), fallback=str)
    return to_json(storable(value), fallback=str) if any(token in body for token in _SUSPECT) else body


def is_storable(value: Any) -> bool:
    """Whether `storable` would change nothing; far cheaper than to find out by it."""
    try:
        body = to_json(value, fallback=str)
    except ValueError:
        return False
    return not any(token in body for token in _SUSPECT)


def storable(value: Any) -> Any:
    """A JSON value without what no row can hold: NUL characters, halves of surrogate pairs, numbers that are none."""
    if isinstance(value, str):
        text = value.replace("\0", "\ufffd")
        return text if text.isascii() else text.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # as pydantic has it in JSON
    return value


def as_recorded(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as their row can hold them. What is no JSON has no lasting form: a replay could not tell whether
    the call is the same."""
    held = storable(arguments)
    for argument, value in held.items():
        try:
            to_json(value)
        except PydanticSerializationError as error:
            raise InvalidInputError(f"{name}: argument {argument!r} is not JSON: {error}", field=argument) from None
    return dict(held)


def make_blob(body: bytes, *, compress: bool = False) -> Blob:
    digest = hashlib.sha256(body).hexdigest()
    stored = zlib.compress(body, 6) if compress else body
    return Blob(id=digest, body=stored, encoding="json+zlib" if compress else "json", size=len(body))


def make_text_blob(body: bytes) -> Blob:
    """A text as it is, which can be read in parts. Fast rather than small: it may be of many megabytes."""
    return Blob(id=hashlib.sha256(body).hexdigest(), body=zlib.compress(body, 1), encoding="text+zlib", size=len(body))


def blob_value(blob: Blob) -> Any:
    body = bytes(blob.body)
    return json.loads(zlib.decompress(body) if blob.encoding.endswith("+zlib") else body)


def externalize(entry: Entry) -> list[Blob]:
    """Encode the entry's values, once, as its row holds them: those too big for a row as references. Returns the blobs
    to write first. The entry's own values stay whole, its frames are made of them."""
    blobs = list(entry.blobs)
    limit = int(conf.INLINE_BYTES)
    for name in ("request", "result"):
        value = getattr(entry, name)
        if value is None:
            continue
        body = encode(value)
        if len(body) > limit:
            blob = make_blob(body, compress=True)
            body = to_json({BLOB_KEY: blob.id, "size": blob.size})
            blobs.append(blob)
        entry.stored[name] = body.decode()
    return blobs


def fits_in_row(entry: Entry) -> bool:
    """Whether no value is too big for a row: then `externalize` has nothing to do, and they are encoded for good."""
    if entry.blobs:
        return False
    limit = int(conf.INLINE_BYTES)
    for name in ("request", "result"):
        if (value := getattr(entry, name)) is not None:
            if _room(value, limit) < 0:
                return False
            body = encode(value)
            if len(body) > limit:
                return False
            entry.stored[name] = body.decode()
    return True


def _room(value: Any, left: int) -> int:
    """`left` less the letters of the texts inside, as far as they fit. Costs far less than to encode a big value."""
    if isinstance(value, str):
        return left - len(value)
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            if (left := _room(inner, left)) < 0:
                break
    return left


def stored_text(entry: Entry, name: str) -> str | None:
    """JSON text of the entry's request or result; None stays NULL."""
    return entry.stored.get(name) or dumps(getattr(entry, name))


def names_of_bodies(row: Any) -> set[str]:
    """Ids of the blobs that hold the row's values, and the whole of a result that was cut."""
    named = (_blob_id(row.request), _blob_id(row.result), (row.digests or {}).get("whole"))
    return {name for name in named if name is not None}


def sizes_outside(rows: list[Any]) -> list[int]:
    """How many bytes `internalize` would add to each row."""
    named = [[_blob_id(row.request), _blob_id(row.result)] for row in rows]
    if not (ids := {id for pair in named for id in pair if id is not None}):
        return [0] * len(rows)
    sizes: dict[str | None, int] = dict(Blob.objects.filter(id__in=ids).values_list("id", "size"))
    return [sum(sizes.get(id, 0) for id in pair) for pair in named]


def internalize(rows: list[Any]) -> None:
    """Put the values of referenced blobs back, for all rows in one query. Rows have `request` and `result`."""
    places = [(row, name) for row in rows for name in ("request", "result") if _blob_id(getattr(row, name))]
    if not places:
        return
    ids = {_blob_id(getattr(row, name)) for row, name in places}
    values: dict[str | None, Any] = {blob.id: blob_value(blob) for blob in Blob.objects.filter(id__in=ids)}
    for row, name in places:
        value = getattr(row, name)  # of an agent's own log entry it may be that it only looks like a reference
        setattr(row, name, values.get(_blob_id(value), value))


def _blob_id(value: Any) -> str | None:
    return value.get(BLOB_KEY) if isinstance(value, dict) and len(value) == 2 else None


def journal_row(entry: Entry, *, run_id: UUID, seq: int, generation: int, epoch: int, now: Any, start: Any) -> Any:
    """The entry as a model instance, for databases that append through the ORM."""
    usage = entry.usage
    return JournalEntry(
        id=entry.id,
        run_id=run_id,
        seq=seq,
        generation=generation,
        path=entry.path,
        attempt=entry.attempt,
        phase=Phase(entry.phase),
        kind=entry.kind,
        name=entry.name,
        request=_stored_value(entry, "request"),
        digests=entry.digests,
        result=_stored_value(entry, "result"),
        error=entry.error,
        input_tokens=usage.input_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        cost=entry.cost,
        inbox_upto=entry.inbox_upto,
        schema=SCHEMA,
        epoch=epoch,
        started_at=start,
        finished_at=now,
    )


def _stored_value(entry: Entry, name: str) -> Any:
    text = stored_text(entry, name)
    return None if text is None else json.loads(text)
