"""Copies of rows, made inside the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from ravi_django.db import connection
from ravi_django.engine.db import postgres
from ravi_django.models import Run, Turn
from ravi_django.models.fields import KINDS, TEXT, TextJSONField


def copy_turns(turns: QuerySet[Turn], session_id: UUID, *, position: str = "position") -> None:
    """Copy them into another session. `position` is an SQL expression; `ended` in it is the end of the turn's session,
    if that is a child's."""
    other = {"index": None, "entry_seq": None, "session_id": as_literal(session_id), "position": position}
    other["agent"] = "coalesce(agent, of_run)"
    other["content"] = f"CASE WHEN entry_seq IS NULL THEN content {_OF_CALL[postgres.in_use()]} END"
    copy_rows(turns, other, ended=F("session__ended_at"), **_HELD)


def fill_turns(turns: QuerySet[Turn]) -> None:
    """Write into these turns the blocks of their calls, and the agents of their runs."""
    past, parameters = turns.order_by().values("session_id", "position", **_HELD).query.get_compiler(turns.db).as_sql()
    content = f"CASE {_OF_CALL[postgres.in_use()]} END"
    statement = f"""UPDATE ravi_turn SET entry_seq = NULL, agent = coalesce(agent, of_run), content = {content}
FROM ({past}) AS past
WHERE ravi_turn.session_id = past.session_id AND ravi_turn.position = past.position"""  # noqa: S608 - of our own names
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


_HELD = {name: F(f"entry__{name}") for name in ("kind", "request", "result")} | {"of_run": F("run__agent")}
# The blocks of a turn that refers to its call are those of `blocks_of`, by value: the source's journal may be deleted.
_CONTENT = (  # of a result in the form of `packed`; on SQLite and on PostgreSQL
    f"""json(coalesce(json_extract(result, '$.content'),
  json_array(json_object('type', 'text', 'text', json_extract(result, '$."{TEXT}"')))))""",
    f"""coalesce(result::jsonb -> 'content',
  jsonb_build_array(jsonb_build_object('type', 'text', 'text', result::jsonb -> '{TEXT}')))""",
)
_OF_CALL = (
    f"""WHEN kind = {KINDS["llm.call"]} THEN {_CONTENT[0]} ELSE json_array(json_object(
  'type', 'tool_result', 'call_id', json_extract(request, '$.call_id'), 'content', {_CONTENT[0]},
  'is_error', json(iif(json_extract(result, '$.is_error'), 'true', 'false'))))""",
    f"""WHEN kind = {KINDS["llm.call"]} THEN {_CONTENT[1]} ELSE jsonb_build_array(jsonb_build_object(
  'type', 'tool_result', 'call_id', request::jsonb -> 'call_id', 'content', {_CONTENT[1]},
  'is_error', coalesce(result::jsonb -> 'is_error', 'false')))""",
)


def as_literal(key: UUID) -> str:
    """An id as a literal of the database."""
    value = Run._meta.pk.get_db_prep_value(key, connection)
    return f"'{value}'" + ("::uuid" if postgres.in_use() else "")


def copy_rows(rows: QuerySet[Any], other: Mapping[str, str | None], **more: F) -> None:
    """Copy rows inside the database, `other` columns from these SQL expressions, which may use the columns `more`.
    None: the database sets it."""
    fields: list[Any] = [*rows.model._meta.local_concrete_fields]
    columns = [field.column for field in fields]
    if postgres.in_use():  # `past` has them as text
        texts = {str(field.column) for field in fields if isinstance(field, TextJSONField)}
        other = {**{column: f"{column}::json" for column in texts}, **other}
    past, parameters = rows.order_by().values(*columns, **more).query.get_compiler(rows.db).as_sql()
    copied = [column for column in columns if other.get(column, column)]
    values = ", ".join(other.get(column) or column for column in copied)
    order = ", ".join(field.column for field in rows.model._meta.pk_fields)
    statement = f"""INSERT INTO {rows.model._meta.db_table} ({", ".join(copied)})
SELECT {values} FROM ({past}) AS past ORDER BY {order}"""  # noqa: S608 - of our own names
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
