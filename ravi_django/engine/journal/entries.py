"""Journal rows and history turns, to and from the database."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import UserString
from collections.abc import Iterable, Mapping, Sequence, Set, ValuesView
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from numbers import Integral, Real
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.query import ModelIterable
from django.utils.functional import Promise
from pydantic_core import PydanticSerializationError, to_json

from ravi_django.agents.memory.transcript import keeps_of
from ravi_django.calls.llm.errors import error_text
from ravi_django.kernel import ChatMessage, InvalidInputError, Usage
from ravi_django.kernel.chat import TOKENS as TOKENS
from ravi_django.kernel.json_values import MAX_DEPTH, check_storable, is_suspect, parsed, storable
from ravi_django.models import Blob, JournalEntry, Phase, Session, Turn
from ravi_django.models.fields import packed, unpacked
from ravi_django.models.session import blocks_of

BLOB_KEY = "$blob"  # {"$blob": sha256, "size": bytes} replaces a value that is stored as a Blob
INLINE_BYTES = 64 * 1024  # larger values of a row are stored as a Blob
SCHEMA = 1  # version of the stored values' format
MAX_ITEMS = 10_000  # read from a queryset or an iterator, which may never end
GIVE_MESSAGES = ("run.started", "msg.received")  # kinds of rows by which the code was given messages


@dataclass(slots=True)
class Entry:
    """A row to append. The database sets its times: finished now, started `elapsed_s` before."""

    kind: str
    path: str
    name: str = ""
    phase: str = "result"
    attempt: int = 1
    request: Any = None
    result: Any = None
    error: dict[str, Any] | None = None
    trace: list[dict[str, Any]] | None = None  # see failures.trace_of
    digests: dict[str, Any] | None = None
    usage: Usage | None = None
    cost: float | None = None
    read_upto: int | None = None
    elapsed_s: float = 0.0
    seq: int = 0  # under which it was written, or tried last
    is_written: bool = False
    stored: dict[str, str] = field(default_factory=dict)  # request and result as the row's JSON; see `externalize`
    blobs: list[Blob] = field(default_factory=list)  # bodies named by the row's digests, written before it

    @property
    def blocks(self) -> list[dict[str, Any]] | None:
        """The blocks of the message that the history has of this call; None if the written row does not hold them."""
        if self.result is None or any(text.startswith(f'{{"{BLOB_KEY}"') for text in self.stored.values()):
            return None
        return blocks_of(self.kind, self.request, self.result)

    @property
    def is_effect(self) -> bool:
        return self.kind in ("llm.call", "tool.call")

    @property
    def gives_messages(self) -> bool:
        return self.kind in GIVE_MESSAGES


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A history turn to write with the next append."""

    session_id: UUID
    agent: str
    message: ChatMessage
    entry: Entry | None = None  # the row of the run's journal that holds the message's blocks
    shared: bool = False  # the session's other agents read it
    seen: int | None = None  # of a summary: the position up to which other agents' turns were read

    def columns(self, entries: Sequence[Entry], agent: str) -> dict[str, Any]:
        """Values by column. The turn is written with these `entries` of this agent's run. It refers to no row that may
        not be there by then."""
        entry = self.entry
        if entry is not None and not (entry.is_written or any([entry is one for one in entries])):
            entry = None
        return {
            "entry_seq": None if entry is None else entry.seq,
            "agent": None if entry is not None and self.agent == agent else self.agent,
            "content": self.message.to_json()["content"] if entry is None else None,
            "role": self.message.role,
            "name": self.message.name or "",
            "keeps": self.keeps,
            "shared": self.shared,
            "seen": self.seen,
        }

    @property
    def keeps(self) -> int | None:
        """In a summary: the number of turns directly before it that it keeps."""
        return keeps_of(self.message)


@dataclass(slots=True)
class Recorded:
    """A row as replay reads it; its fields are columns of JournalEntry."""

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
    read_upto: int | None
    started_at: datetime
    finished_at: datetime

    @property
    def usage(self) -> Usage:
        return Usage.of(self)

    @property
    def usage_estimated(self) -> bool:
        return JournalEntry.usage_estimated.fget(self)  # type: ignore[attr-defined, no-any-return]


COLUMNS = [column.name for column in fields(Recorded)]


def dumps(value: Any) -> str | None:
    """JSON text of a column; None stays NULL."""
    return None if value is None else encode(value).decode()


def encode(value: Any) -> bytes:
    """JSON that every database can store. A value that is not JSON becomes text. Raises ValueError for a value that is
    nested too deep to be read back."""
    body = b""
    with suppress(ValueError):  # half a surrogate pair
        body = to_json(value, fallback=str)
    if not body or is_suspect(body):
        body = to_json(storable(value), fallback=str)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        parsed(body)  # raises if they are within each other
    return body


class NotJson(InvalidInputError):
    """A result or an output has no form as JSON; `raised` says why."""

    def __init__(self, value: Any, raised: Exception) -> None:
        reason, too_long = error_text(raised), f"has more than {MAX_ITEMS} items"
        self.fault = f"the result of type {type(value).__name__} {too_long if too_long in reason else 'is not JSON'}"
        super().__init__(
            f"{self.fault} ({reason}). Return text, numbers, lists and dicts; of a queryset return queryset.values()"
            f"[:{MAX_ITEMS}]",
            field="result",
        )


def plain(value: Any) -> Any:
    """A `fallback` of pydantic for a returned value. Raises TypeError for one that has no form as JSON, ValueError for
    too many items."""
    match value:
        case Promise() | UserString():  # a lazy translation
            return str(value)
        case BaseException():
            return error_text(value)
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case memoryview():
            return bytes(value)
        case Mapping():
            return dict(value)
        case QuerySet() if not issubclass(value._iterable_class, ModelIterable):
            return listed(value[: MAX_ITEMS + 1])
        case Sequence() | Set() | ValuesView():
            return listed(value)
    raise TypeError(f"there is a value of type {type(value).__name__}")


def listed(values: Iterable[Any]) -> list[Any]:
    """The items of what was returned. Raises ValueError: the first of them alone would pass for all."""
    items = list(islice(values, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise ValueError(f"a value of type {type(values).__name__} has more than {MAX_ITEMS} items")
    return items


def as_recorded(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as their row holds them. Raises InvalidInputError for one that is not JSON, or a number that no row
    holds: a replay could not compare it."""
    check_storable(arguments, name, texts=False)
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
    """A blob of plain text, which can be read in parts. Compressed fast rather than small: it may be megabytes."""
    return Blob(id=hashlib.sha256(body).hexdigest(), body=zlib.compress(body, 1), encoding="text+zlib", size=len(body))


def blob_value(blob: Blob) -> Any:
    body = bytes(blob.body)
    return json.loads(zlib.decompress(body) if blob.encoding.endswith("+zlib") else body)


def externalize(entry: Entry) -> list[Blob]:
    """Encode the entry's values once, in `stored`. Values too big for a row become references; returns their blobs,
    to be written first. The entry's own values stay: its frames use them."""
    blobs = list(entry.blobs)
    for name in ("request", "result"):
        value = getattr(entry, name)
        if value is None:
            continue
        body = encode(_in_row(name, value))
        if len(body) > INLINE_BYTES:
            blob = make_blob(encode(value), compress=True)
            body = to_json({BLOB_KEY: blob.id, "size": blob.size})
            blobs.append(blob)
        entry.stored[name] = body.decode()
    return blobs


def fits_in_row(entry: Entry) -> bool:
    """Whether no value is too big for a row. Then `stored` is set, and `externalize` is not needed."""
    if entry.blobs:
        return False
    texts = {}
    for name in ("request", "result"):
        if (value := getattr(entry, name)) is not None:
            if _room(value, INLINE_BYTES) < 0:
                return False
            body = encode(_in_row(name, value))
            if len(body) > INLINE_BYTES:
                return False
            texts[name] = body.decode()
    entry.stored = texts
    return True


def _room(value: Any, left: int) -> int:
    """`left` minus the characters of the texts inside; stops below 0. Much cheaper than encoding a big value."""
    values = [value]
    while values and left >= 0:
        value = values.pop()
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
    return left


def stored_text(entry: Entry, name: str) -> str | None:
    """JSON text of the entry's request or result; None stays NULL."""
    return entry.stored.get(name) or dumps(_in_row(name, getattr(entry, name)))


def _in_row(name: str, value: Any) -> Any:
    return packed(value) if name == "result" else value


def names_of_bodies(row: Any) -> set[str]:
    """Ids of the blobs that hold the row's values and the full text of a result that was cut."""
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
        value = getattr(row, name)  # a log entry of an agent may only look like a reference
        setattr(row, name, values.get(_blob_id(value), value))


def _blob_id(value: Any) -> str | None:
    return value.get(BLOB_KEY) if isinstance(value, dict) and len(value) == 2 else None


def journal_row(entry: Entry, *, run_id: UUID, generation: int, epoch: int, now: Any, start: Any) -> Any:
    """The entry as a model instance, to append it through the ORM."""
    return JournalEntry(
        run_id=run_id,
        seq=entry.seq,
        generation=generation,
        path=entry.path,
        attempt=entry.attempt,
        phase=Phase(entry.phase),
        kind=entry.kind,
        name=entry.name,
        request=_stored_value(entry, "request"),
        digests=entry.digests,
        result=unpacked(_stored_value(entry, "result")),
        error=entry.error,
        trace=entry.trace,
        **({name: getattr(entry.usage, name) for name in TOKENS} if entry.usage else {}),
        cost=entry.cost,
        read_upto=entry.read_upto,
        epoch=epoch,
        started_at=start,
        finished_at=now,
    )


def _stored_value(entry: Entry, name: str) -> Any:
    text = stored_text(entry, name)
    return None if text is None else json.loads(text)


def write_turns(
    session_id: UUID,
    turns: Sequence[tuple[int | None, NewTurn]],
    *,
    run_id: UUID | None,
    agent: str = "",
    entries: Sequence[Entry] = (),
) -> None:
    """Store turns at the end of a session, under its lock, each with its index within the run. `agent`: the run's."""
    Session.objects.filter(id=session_id).update(next_position=F("next_position") + len(turns))
    end = Session.objects.values_list("next_position", flat=True).get(id=session_id)
    of_run = {"session_id": session_id, "run_id": run_id}
    Turn.objects.bulk_create(
        Turn(position=position, index=index, **of_run, **turn.columns(entries, agent))
        for position, (index, turn) in enumerate(turns, end - len(turns))
    )
