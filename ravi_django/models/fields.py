"""Columns in a compact form. Python, REST, the export and the admin have the names and values."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast


def _numbered(names: str) -> dict[str, int]:
    """From 1 on. Rows have the numbers: append names, and leave those that are not written any more."""
    return {name: number for number, name in enumerate(names.split(), 1)}


PHASES = _numbered("started paused result")
KINDS = _numbered(
    """
    run.started run.resumed run.suspended run.continued run.retried run.handoff run.forked
    run.completed run.failed run.cancelled run.blocked
    llm.call llm.paid tool.call effect.checked approval ask_human request.opened request.closed
    ask ask.replied child.spawned msg.received msg.sent signal timer
    history.read history.count history.clear history.retention state.set chat.output log now patched pinned replay.drift
    follow follow.updated unfollow emit
    """
)
ROLES = _numbered("system user assistant tool")
DIGESTS = _numbered("arguments instructions tools whole")  # hexadecimal in Python
TEXT = "$text"  # {"$text": "…"} stands for {"content": [{"type": "text", "text": "…"}]}


def number_of(name: str, numbers: dict[str, int]) -> int:
    """The number of a name. Raises ValueError for one that has none."""
    if (number := numbers.get(name)) is None:
        raise ValueError(f"{name!r} has no number in {__name__}; give it a new one there")
    return number


class NameField(models.Field):  # type: ignore[type-arg]
    """A name of a table, stored as its number. Lookups by exact and in take names."""

    numbers: ClassVar[dict[str, int]]
    names: ClassVar[dict[int, str]]
    empty_strings_allowed = False

    def __init_subclass__(cls) -> None:
        cls.names = {number: name for name, number in cls.numbers.items()}

    def get_internal_type(self) -> str:
        return "SmallIntegerField"

    def get_prep_value(self, value: Any) -> Any:
        return value if value is None else number_of(value, self.numbers)

    def from_db_value(self, value: int | None, expression: Any, connection: Any) -> str | None:
        return None if value is None else self.names.get(value, f"unknown {value}")


class PhaseField(NameField):
    numbers = PHASES


class KindField(NameField):
    numbers = KINDS


class RoleField(NameField):
    numbers = ROLES


class DigestsField(models.Field):  # type: ignore[type-arg]
    """Digests by name: each as its number in DIGESTS, its length and its bytes."""

    empty_strings_allowed = False

    def get_internal_type(self) -> str:
        return "BinaryField"

    def get_prep_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, bytes) else bytes.fromhex(packed_digests(value))

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> dict[str, str] | None:
        if value is None:
            return None
        digests, body, at = {}, bytes(value), 0
        while at < len(body):
            end = at + 2 + body[at + 1]
            digests[_DIGEST_NAMES[body[at]]] = body[at + 2 : end].hex()
            at = end
        return digests

    def value_to_string(self, obj: Any) -> Any:
        return self.value_from_object(obj)


_DIGEST_NAMES = {number: name for name, number in DIGESTS.items()}


def packed_digests(digests: dict[str, str]) -> str:
    """The stored bytes, in hexadecimal digits."""
    return "".join([f"{DIGESTS[name]:02x}{len(digest) // 2:02x}{digest}" for name, digest in digests.items() if digest])


class TextJSONField(models.JSONField):
    """JSON as its text: of a small value PostgreSQL's jsonb has twice the bytes. Lookups of keys work."""

    def db_type(self, connection: Any) -> str | None:
        return "json" if connection.vendor == "postgresql" else super().db_type(connection)

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """As text: psycopg reads a `json` itself, which Django does a second time."""
        return f"({sql})::text" if compiler.connection.vendor == "postgresql" else sql, params

    def get_transform(self, name: str) -> Any:
        return lambda lhs, **options: KeyTransform(name, Cast(lhs, models.JSONField()), **options)


class ResultField(TextJSONField):
    """JSON in which a content of one text block is stored as that text."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return super().get_db_prep_value(packed(value), connection, prepared)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return unpacked(super().from_db_value(value, expression, connection))


def packed(value: Any) -> Any:
    """The form in which a result is stored."""
    if not isinstance(value, dict):
        return value
    if TEXT in value:
        return {TEXT: [value]}
    match value.get("content"):
        case [{"type": "text", "text": str(text), **more}] if not more:
            return {TEXT: text, **{name: part for name, part in value.items() if name != "content"}}
    return value


def unpacked(value: Any) -> Any:
    """A result as it was before `packed`."""
    if not isinstance(value, dict) or TEXT not in value:
        return value
    text = value.pop(TEXT)
    return {"content": [{"type": "text", "text": text}], **value} if isinstance(text, str) else text[0]
