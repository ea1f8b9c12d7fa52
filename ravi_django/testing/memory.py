"""SQLite in memory, Django's default test database: all threads use the connection of the test, one after the other.

Connections of their own to the same memory would fail at once with "database table is locked" where two of them use a
table. Here a transaction, and a statement outside of one, waits for the other threads instead.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from django.db import OperationalError, connections
from django.db.backends.sqlite3.base import DatabaseWrapper, SQLiteCursorWrapper

WAIT_S = 30.0  # for the transaction of another thread, which may wait for this one

_lock = threading.RLock()
_connections: dict[str, sqlite3.Connection] = {}  # by the name of the database


def share() -> None:
    """Have all threads of this process use the caller's connections to databases in memory."""
    for wrapper in connections.all():
        if isinstance(wrapper, DatabaseWrapper) and wrapper.is_in_memory_db():
            wrapper.ensure_connection()
            _connections.setdefault(str(wrapper.settings_dict["NAME"]), wrapper.connection)
    if _connections:
        for method in _METHODS:
            setattr(DatabaseWrapper, method.__name__, method)


def forget() -> None:
    """The test databases are destroyed."""
    _connections.clear()


def _acquire() -> None:
    if not _lock.acquire(timeout=WAIT_S):
        raise OperationalError(f"database is locked: a transaction of another thread is open for over {WAIT_S:g} s")


@contextmanager
def _alone() -> Iterator[None]:
    _acquire()
    try:
        yield
    finally:
        _lock.release()


class _Cursor(SQLiteCursorWrapper):
    """Reads all rows of a statement at once, before another thread writes."""

    _rows: Iterator[Any] = iter(())

    def execute(self, *args: Any) -> Any:
        with _alone():
            super().execute(*args)
            self._rows = iter(super().fetchall() if self.description else ())
        return self

    def executemany(self, *args: Any) -> Any:
        with _alone():
            return super().executemany(*args)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return list(islice(self._rows, size or self.arraysize))

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Any:
        return self._rows


# ------------------------------------------------------------------- methods of Django's DatabaseWrapper, replaced


def get_new_connection(self: Any, params: Any) -> Any:
    return _connections.get(str(self.settings_dict["NAME"])) or _original["get_new_connection"](self, params)


def create_cursor(self: Any, name: Any = None) -> Any:
    return self.connection.cursor(factory=_Cursor if self.is_in_memory_db() else SQLiteCursorWrapper)


def _start_transaction_under_autocommit(self: Any) -> None:
    """BEGIN. The lock is kept until the end of the transaction."""
    with _alone():
        _original["_start_transaction_under_autocommit"](self)
        if self.is_in_memory_db():
            _acquire()
            self.ravi_begun = True


def _set_autocommit(self: Any, autocommit: bool) -> None:
    """The end of a transaction. It also commits what the connection has begun: that must not be another thread's."""
    with _alone():
        _original["_set_autocommit"](self, autocommit)
        if vars(self).pop("ravi_begun", False):
            _lock.release()


_METHODS: Any = (get_new_connection, create_cursor, _start_transaction_under_autocommit, _set_autocommit)
_original: dict[str, Any] = {method.__name__: getattr(DatabaseWrapper, method.__name__) for method in _METHODS}
