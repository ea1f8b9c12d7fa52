"""The database that holds the app's rows: the alias RAVI["DATABASE"] of DATABASES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, Func, QuerySet
from django.db.transaction import Atomic, on_commit as _on_commit

from ravi_django.conf import conf


def alias() -> str:
    return str(conf.DATABASE)


def is_shared(wrapper: Any) -> bool:
    """Whether other clients use the session of this open connection: it is from Django's `pool`, or goes through a
    transaction pooler, which invents the backend pid of the protocol."""
    raw = wrapper.connection
    shared = getattr(raw, "ravi_shared", None)
    if shared is None:
        with wrapper.wrap_database_errors:
            shared = bool(wrapper.settings_dict["OPTIONS"].get("pool"))
            if not shared:
                with raw.cursor() as cursor:
                    pid = cursor.execute("SELECT pg_backend_pid()", prepare=False).fetchone()[0]
                shared = raw.info.backend_pid != pid
        raw.ravi_shared = shared
    return bool(shared)


class Bytes(Func):
    """The bytes of a column as text, counted by the server: no more than a batch is read."""

    template = "octet_length((%(expressions)s)::text)"
    output_field = BigIntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="length(CAST(%(expressions)s AS BLOB))", **extra)


MODE = "ISOLATION LEVEL READ COMMITTED READ WRITE"


def limit_transaction(wrapper: Any) -> None:
    """Limit the waits of an `atomic` block on a database thread's shared connection, before its first statement."""
    raw = wrapper.connection
    limits = getattr(raw, "ravi_limits", None)
    if limits is not None and wrapper.in_atomic_block and not raw.info.transaction_status:
        with wrapper.wrap_database_errors, raw.cursor() as cursor:
            cursor.execute(limits)


class _Connection:
    """This thread's connection to the app's database, like `django.db.connection` for the default one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(connections[alias()], name)


connection = cast(BaseDatabaseWrapper, _Connection())


class transaction:
    """`django.db.transaction` for this database."""

    @staticmethod
    def atomic(*, using: str | None = None, durable: bool = False) -> Atomic:
        return Atomic(using or alias(), savepoint=True, durable=durable)

    @staticmethod
    def on_commit(function: Callable[[], Any], *, using: str | None = None, robust: bool = False) -> None:
        _on_commit(function, using or alias(), robust)


def lock_rows(rows: QuerySet[Any]) -> None:
    """Lock these rows in the order of their keys, until the caller's transaction ends. A statement for many rows locks
    them in any order: two at the same time, of a sweep and of a command, could deadlock."""
    column = rows.model._meta.pk_fields[0].attname
    list(rows.select_for_update(of=("self",), no_key=True).order_by("pk").values_list(column))


class Router:
    """Comes before the site's routers: a read of the app's rows from a replica that lags would lose a wake-up."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return alias() if model._meta.app_label == "ravi" else None

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        """A user may come from a replica of the same database."""
        return True if "ravi" in (one._meta.app_label, other._meta.app_label) else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == alias() if app_label == "ravi" else None
