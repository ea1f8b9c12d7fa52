"""Copies of rows, made inside the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from ravi_django.db import connection
from ravi_django.engine.db import postgres
from ravi_django.models import Run, Turn


def copy_turns(turns: QuerySet[Turn], session_id: UUID, *, position: str = "position") -> None:
    """Copy them into another session. `position` is an SQL expression; `ended` in it is the end of the turn's session,
    if that is a child's."""
    other = {"id": None, "index": None, "entry_id": None, "session_id": as_literal(session_id), "position": position}
    other["content"] = f"CASE WHEN entry_id IS NULL THEN content {_OF_CALL[postgres.in_use()]} END"
    held = {name: F(f"entry__{name}") for name in ("kind", "request", "result")}
    copy_rows(turns, other, ended=F("session__ended_at"), **held)


# The blocks of a turn that refers to its call are those of `blocks_of`, by value: the source's journal may be deleted.
_OF_CALL = (  # on SQLite and on PostgreSQL
    """WHEN kind = 'llm.call' THEN json(json_extract(result, '$.content')) ELSE json_array(json_object(
  'type', 'tool_result', 'call_id', json_extract(request, '$.call_id'),
  'content', json(json_extract(result, '$.content')),
  'is_error', json(iif(json_extract(result, '$.is_error'), 'true', 'false'))))""",
    """WHEN kind = 'llm.call' THEN result -> 'content' ELSE jsonb_build_array(jsonb_build_object(
  'type', 'tool_result', 'call_id', request -> 'call_id', 'content', result -> 'content',
  'is_error', coalesce(result -> 'is_error', 'false')))""",
)


def as_literal(key: UUID) -> str:
    """An id as a literal of the database."""
    value = Run._meta.pk.get_db_prep_value(key, connection)
    return f"'{value}'" + ("::uuid" if postgres.in_use() else "")


def copy_rows(rows: QuerySet[Any], other: Mapping[str, str | None], **more: F) -> None:
    """Copy rows inside the database, `other` columns from these SQL expressions, which may use the columns `more`.
    None: the database sets it."""
    columns = [field.column for field in rows.model._meta.local_concrete_fields]
    past, parameters = rows.order_by().values(*columns, **more).query.sql_with_params()
    copied = [column for column in columns if other.get(column, column)]
    values = ", ".join(other.get(column) or column for column in copied)
    statement = f"""INSERT INTO {rows.model._meta.db_table} ({", ".join(copied)})
SELECT {values} FROM ({past}) AS past ORDER BY past.id"""  # noqa: S608 - of our own names
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
