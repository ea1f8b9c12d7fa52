"""Own PostgreSQL statements for the steps of every run: no query is compiled, and each is planned once.

The server binds their parameters. All are sent as text and cast in the statement: parameters of one type keep one
prepared statement.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Field, JSONField, Model
from django.db.models.expressions import BaseExpression
from pydantic_core import from_json, to_json

from ravi_django.db import alias, connection, is_shared
from ravi_django.engine.db import clock
from ravi_django.engine.db.connections import limited
from ravi_django.models import Blob
from ravi_django.models.base import HexField

Row = TypeVar("Row", bound=Model)
Params = Sequence[str | None] | Mapping[str, Any]

NOW = "coalesce(%(now)s::timestamptz, statement_timestamp())"  # a fake clock's present, else the database's

_thread = threading.local()  # .cursor: this thread's, on the connection that it was made for


def in_use() -> bool:
    return bool(connection.vendor == "postgresql")


def execute(sql: str, params: Params) -> list[tuple[Any, ...]]:
    """Run one statement on this thread's connection; returns its rows.

    Nothing is prepared on a shared connection: its next statement may go to another server process.
    """
    from psycopg import RawCursor

    wrapper = connections[alias()]  # the proxy would look it up at each use
    wrapper.ensure_connection()
    pooled = is_shared(wrapper)
    if not pooled and wrapper.connection.prepare_threshold is None:
        wrapper.connection.prepare_threshold = 2  # Django's own cursors bind on the client and never prepare
    cursor = getattr(_thread, "cursor", None)
    if cursor is None or cursor.connection is not wrapper.connection:
        cursor = _thread.cursor = RawCursor(wrapper.connection)  # kept: making one costs as much as using it
    if wrapper.queries_logged:
        _log(wrapper, sql, params)
    wrapper.validate_no_broken_transaction()
    text, names = numbered(sql)
    values = [params[name] for name in names] if isinstance(params, Mapping) else params
    with wrapper.wrap_database_errors, limited(wrapper):
        cursor.execute(text, values, prepare=not pooled)
    with wrapper.wrap_database_errors:
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


@cache
def numbered(sql: str) -> tuple[bytes, list[Any]]:
    """The statement with the server's placeholders, and the names of its parameters. psycopg would parse a statement of
    more than 4 kB at each use."""
    numbers: dict[Any, int] = {}  # by name, or by the position of a placeholder without one

    def placeholder(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match[1] or match.start(), len(numbers) + 1)}"

    return re.sub(r"%(?:\((\w+)\))?s", placeholder, sql).encode(), list(numbers)


def insert_blob(blob: Blob) -> None:
    """Write one body, bound as bytes: as text in a statement, megabytes cost many times as much."""
    params = {"id": blob.id, "body": blob.body, "encoding": blob.encoding, "size": str(blob.size), "now": present()}
    execute(_INSERT_BLOB, params)


_INSERT_BLOB = (
    "INSERT INTO ravi_blob (id, body, encoding, size, created_at)"  # noqa: S608 - the only part is our own NOW
    f" VALUES (decode(%(id)s::text, 'hex'), %(body)s::bytea, %(encoding)s::text, %(size)s::bigint, {NOW})"
    " ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, erase_at = NULL RETURNING id"
)


def _log(wrapper: Any, sql: str, params: Params) -> None:
    """Add the statement to Django's log of queries."""
    from psycopg import ClientCursor

    wrapper.queries_log.append({"sql": ClientCursor(wrapper.connection).mogrify(sql.encode(), params), "time": "0.000"})


def present() -> str | None:
    """The parameter `now` of a statement: the fake clock's time, or None for the database's."""
    fixed = clock.fixed()
    return fixed.isoformat() if fixed else None


def texts(values: Sequence[str] | None) -> str | None:
    """A list of strings for a `jsonb` parameter; None stays NULL."""
    return None if values is None else to_json(list(values)).decode()


@cache
def columns(model: type[Model], alias: str) -> str:
    """All columns of a model's table, in the order that `instance` expects their values."""
    names = [(field, f'{alias}."{field.column}"') for field in model._meta.concrete_fields]
    return ", ".join(f"encode({name}, 'hex')" if isinstance(field, HexField) else name for field, name in names)


def instance(model: type[Row], values: Sequence[Any], errors: list[str] | None = None) -> Row:
    """A model instance with the values of `columns`. `errors`: see `decoded`."""
    names, documents = _shape(model)
    made: Row = model.from_db(alias(), names, decoded(values, documents, errors))
    return made


def decoded(values: Sequence[Any], documents: Sequence[int], errors: list[str] | None = None) -> list[Any]:
    """A row with the JSON of these columns decoded. With `errors` a value that cannot be read becomes None, and the
    reason is added there; without raises ValueError."""
    row = list(values)
    for index in documents:
        if row[index] is not None:
            try:
                row[index] = from_json(row[index])
            except ValueError as error:
                if errors is None:
                    raise
                row[index] = None
                errors.append(str(error))
    return row


@cache
def _shape(model: type[Model]) -> tuple[list[str], list[int]]:
    fields = model._meta.concrete_fields
    names = [field.attname for field in fields]
    return names, [index for index, field in enumerate(fields) if isinstance(field, JSONField)]


def insertable(row: Model) -> tuple[str, str, dict[str, str | None]]:
    """The columns of a new row, their SQL values, and the parameters. Columns that hold an expression, such as a
    default of the database, are left out. A time that Django would set is the database's."""
    fields = []
    params: dict[str, str | None] = {}
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if isinstance(value, BaseExpression) or (value is None and field.primary_key):
            continue
        fields.append(field)
        if not getattr(field, "auto_now", False):
            params[f"{row._meta.model_name}_{field.column}"] = as_text(field, value)
    names, places = _insert(tuple(fields))
    return names, places, params


@cache
def _insert(fields: tuple[Field[Any, Any], ...]) -> tuple[str, str]:
    return ", ".join(f'"{field.column}"' for field in fields), ", ".join(map(_placeholder, fields))


def _placeholder(field: Field[Any, Any]) -> str:
    if getattr(field, "auto_now", False):
        return NOW
    return f"%({field.model._meta.model_name}_{field.column})s::{cast(field)}"


def cast(field: Field[Any, Any]) -> str:
    """The SQL type of a parameter for this column. A cast to varchar would cut a text that is too long."""
    kind = field.rel_db_type(connection) if field.is_relation else field.db_type(connection)
    return "text" if str(kind).startswith("varchar") else str(kind)


def as_text(field: Field[Any, Any], value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(field, JSONField):
        return to_json(value, fallback=str).decode()
    if isinstance(field, HexField):
        return rf"\x{value}"
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(getattr(value, "value", value))
