"""Operations for tables that workers write at that very moment: in migrations that are not `atomic`, each is done by
itself, and may be done again after it was interrupted. Done again, it leaves what stands: by then that may be all that
keeps a rule.

Two locks taken one after the other close a circle with a writer that has taken the second. So an index is built and
dropped beside the writers, and whatever needs the table for itself gives up soon, lets those go on that wait behind
it, and tries again.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import OperationalError, migrations, transaction
from django.db.models import Index

LOCK_S = 2  # whoever wants to write waits as long behind it
TRIES = 30


class AddIndex(migrations.AddIndex):
    """Built beside the writers, on PostgreSQL."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor == "postgresql":
            _build(schema_editor, model, self.index.create_sql(model, schema_editor))
        else:
            with transaction.atomic(schema_editor.connection.alias):
                _forget(schema_editor, self.index.name)
                super().database_forwards(app_label, schema_editor, from_state, to_state)


class AddUnique(migrations.AddConstraint):
    """The same for a unique constraint with a condition, which is an index."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor == "postgresql":
            _build(schema_editor, model, self.constraint.create_sql(model, schema_editor))
        else:
            with transaction.atomic(schema_editor.connection.alias):
                _forget(schema_editor, self.constraint.name)
                super().database_forwards(app_label, schema_editor, from_state, to_state)


class AlterField(migrations.AlterField):
    """In a transaction of its own, which waits for its locks for a short time, and again."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(connection.alias, model):
            return
        for attempt in range(TRIES):
            try:
                with transaction.atomic(connection.alias):
                    if connection.vendor == "postgresql":
                        schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
                        schema_editor.execute(f"LOCK TABLE {self._tables(schema_editor, model)}")
                    super().database_forwards(app_label, schema_editor, from_state, to_state)
                return
            except OperationalError:  # no lock in time, or a circle
                if attempt == TRIES - 1 or connection.in_atomic_block:
                    raise
                time.sleep(LOCK_S)

    def _tables(self, schema_editor: Any, model: Any) -> str:
        """What its field points to, too: first, as with those who write both."""
        field = model._meta.get_field(self.name)
        tables = [field.remote_field.model._meta.db_table] if field.remote_field is not None else []
        return ", ".join(map(schema_editor.quote_name, [*tables, model._meta.db_table]))


class AlterDbIndex(AlterField):
    """Where `db_index` alone changes: Django would make the foreign key anew, which checks every row while nobody can
    write, and locks what it points to. On PostgreSQL the index alone is built or dropped, beside the writers."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        elif self.allow_migrate_model(schema_editor.connection.alias, model):
            field = model._meta.get_field(self.name)
            if field.db_index:
                for statement in schema_editor._field_indexes_sql(model, field):
                    _build(schema_editor, model, statement)
            else:
                named = [index.name for index in model._meta.indexes]  # on that column too, and no field's
                for name in schema_editor._constraint_names(
                    model, [field.column], index=True, unique=False, type_=Index.suffix, exclude=named
                ):
                    _drop(schema_editor, schema_editor.quote_name(name))


def _build(schema_editor: Any, model: Any, statement: Any) -> None:
    """Unless it stands. What a build that was interrupted has left is there, and used by nobody."""
    sql, parts = str(statement), statement.parts
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text, indisvalid, indisunique, pg_get_indexdef(indexrelid)"
            " FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indrelid = to_regclass(%s) AND relname = %s",
            [schema_editor.quote_name(model._meta.db_table), str(parts["name"]).strip('"')],
        )
        found = cursor.fetchone()
    if found is not None:
        name, valid, unique, definition = found
        same = _plain(definition.partition(" USING btree ")[2]) == _plain(f"{parts['columns']}{parts['condition']}")
        if valid and same and unique == sql.startswith("CREATE UNIQUE"):
            return
        _drop(schema_editor, name)
    schema_editor.execute(sql.replace(" INDEX ", " INDEX CONCURRENTLY ", 1), params=None)


def _plain(definition: str) -> str:
    """As PostgreSQL writes it and as Django does: they differ in quotes and brackets."""
    return definition.translate(str.maketrans("", "", '"()'))


def _drop(schema_editor: Any, name: str) -> None:
    schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", params=None)


def _forget(schema_editor: Any, name: str) -> None:
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute(f"DROP INDEX IF EXISTS {schema_editor.quote_name(name)}")
