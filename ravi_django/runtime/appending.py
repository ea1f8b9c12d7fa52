"""Commit the rows of effects: the one write that every journaled call costs.

An append that is one statement goes over a connection of the event loop: no thread is woken for it, which would cost as
much as the statement. Every other append, and one that fails there, goes to the database threads, which wait and retry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import cache, partial
from hashlib import sha256
from typing import Any

from django.db import IntegrityError, NotSupportedError, connections

from ravi_django.conf import conf
from ravi_django.db import MODE, alias
from ravi_django.kernel import LeaseLostError
from ravi_django.runtime import paths, store
from ravi_django.runtime.database import SHAPES, DatabaseThreads
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import Lease
from ravi_django.runtime.store.fence import Statement

log = logging.getLogger("ravi.appending")

Write = Callable[..., int]  # (lease, entries, turns) -> seq of the first row: an append, or one with more beside it

_OK = (1, 2)  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
REST_S = 5.0  # a connection that has failed is opened again after this time


class Appender:
    """Used on the event loop's thread. `size`: connections of the loop."""

    def __init__(self, database: DatabaseThreads, size: int = 1) -> None:
        self.database = database
        self.connections = [LoopConnection() for _ in range(size)]

    async def append(
        self, lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write | None = None
    ) -> tuple[int | None, Exception | None, bool]:
        """Append by `write`, once: a second try finds the rows of the first. A cancelled caller waits for the end too.

        Returns the seq of the first row, or the error, and whether the caller was cancelled meanwhile.
        """
        cancelled = False
        mine = next((one for one in self.connections if one.is_idle), None)
        if mine is None:
            if wanted := next((one for one in self.connections if one.is_wanted), None):
                wanted.open(self.database)
        elif write is None and not store.concerns_budgets(lease, entries):
            statement = store.append_statement(lease, entries, turns)
            if statement is not None:
                row, cancelled = await mine.execute(statement)
                if row is not None:
                    return *_answer(statement, row), cancelled
        seq, error, again = await self.database.see_through(
            append_repeatable, lease, entries, turns, write or store.append
        )
        return seq, error, cancelled or again

    def copy(self) -> Appender:
        """With the same connections."""
        made = copy(self)
        made.database = copy(self.database)
        return made

    def close(self) -> None:
        """Leave an append that is under way to the threads."""
        for one in self.connections:
            one.close()


class LoopConnection:
    """One append at a time."""

    def __init__(self) -> None:
        self._wrapper: Any = None  # Django's, which has made the connection and nobody else knows of
        self._pg: Any = None  # libpq's
        self._limits = ""  # behind a pooler: set in each transaction
        self._pooled: Any = None  # behind a pooler: psycopg's AsyncConnection
        self._prepared: set[bytes] = set()
        self._is_busy = False
        self._cancelled = False  # the caller, meanwhile
        self._rests_until = 0.0
        self._closed = False

    @property
    def is_idle(self) -> bool:
        return self._pg is not None and not self._is_busy

    @property
    def is_wanted(self) -> bool:
        """Whether to open it."""
        return self._pg is None and not (self._is_busy or self._closed) and time.monotonic() >= self._rests_until

    def open(self, database: DatabaseThreads) -> None:
        """In the background."""
        self._is_busy = True
        with paths.entered(None):  # it is no part of the run that asks
            self._opening = asyncio.create_task(self._open(database))

    async def _open(self, database: DatabaseThreads) -> None:
        from psycopg import AsyncConnection

        try:
            await database.call(self._connect)
            pg, self._limits = self._wrapper.connection.pgconn, getattr(self._wrapper.connection, "ravi_limits", "")
            self._pooled = AsyncConnection(pg) if self._limits else None
            if self._pooled is not None:
                await self._pooled.set_autocommit(True)
            self._pg, self._prepared = pg, set()
        except Exception as error:
            log.debug("no connection for the loop: %s", error)
            self._drop()
        finally:
            self._is_busy = False
            if self._closed:
                self._drop()

    def _connect(self) -> None:
        """On a database thread: as its own connection is, with the same limits on waiting."""
        mine = connections[alias()]
        mine.ensure_connection()
        if mine.vendor != "postgresql":
            raise NotSupportedError("only PostgreSQL has a connection of the loop")
        wrapper = mine.copy()
        wrapper.inc_thread_sharing()
        wrapper.connect()
        self._drop()  # one of a loop that has ended while it was opened
        self._wrapper = wrapper
        if self._closed:  # meanwhile
            self._drop()

    async def execute(self, statement: Statement) -> tuple[tuple[Any, ...] | None, bool]:
        """The statement's row, empty where it has none; None when it failed, and may have happened all the same. And
        whether the caller was cancelled meanwhile."""
        self._is_busy, self._cancelled = True, False
        deadline = asyncio.get_running_loop().call_later(conf.HEARTBEAT_S, self._overdue)
        try:
            row = await (self._directly(statement) if self._pooled is None else self._in_a_transaction(statement))
        except Exception as error:
            log.warning("an append failed and is repeated by a thread: %s", error, extra={"action": "append.repeated"})
            self._drop()
            row = None
        except BaseException:  # the loop ends
            self._drop()
            raise
        finally:
            deadline.cancel()
            self._is_busy = False
        return row, self._cancelled

    async def _directly(self, statement: Statement) -> tuple[Any, ...]:
        name, sql = _named(statement.sql)
        params = [None if param is None else param.encode() for param in statement.params]
        if name not in self._prepared and len(self._prepared) < SHAPES:
            self._pg.send_prepare(name, sql)
            await self._results()
            self._prepared.add(name)
        if name in self._prepared:
            self._pg.send_query_prepared(name, params)
        else:
            self._pg.send_query_params(sql, params)
        result = (await self._results())[0]
        return (result.get_value(0, 0).decode(),) if result.ntuples else ()

    async def _results(self) -> list[Any]:
        """All results up to ReadyForQuery: the statement's own comes before its commit, which can still fail."""
        from psycopg.errors import error_from_result
        from psycopg.generators import execute
        from psycopg.waiting import wait_async

        exchange = execute(self._pg)
        while True:
            try:
                results: list[Any] = await wait_async(exchange, self._pg.socket, conf.HEARTBEAT_S)
            except asyncio.CancelledError:
                self._cancelled = True
                continue
            for result in results:
                if result.status not in _OK:
                    raise error_from_result(result)
            return results

    async def _in_a_transaction(self, statement: Statement) -> tuple[Any, ...]:
        """Behind a pooler, in one round trip: the session is shared with its other clients. In a task of
        its own: psycopg would cancel the statement with its caller."""
        with paths.entered(None):
            exchange = asyncio.create_task(self._pipelined(statement))
        while not exchange.done():
            try:
                await asyncio.wait([exchange])
            except asyncio.CancelledError:
                self._cancelled = True
        return exchange.result()

    async def _pipelined(self, statement: Statement) -> tuple[Any, ...]:
        from psycopg import AsyncRawCursor

        raw, cursor = self._pooled, AsyncRawCursor(self._pooled)
        async with raw.pipeline():
            for begin in (f"BEGIN {MODE}", *self._limits.split("; ")):
                await raw.execute(begin)
            await cursor.execute(_named(statement.sql)[1], statement.params, prepare=False)
            await raw.execute("COMMIT")
        return await cursor.fetchone() or ()

    def _overdue(self) -> None:
        """The server would have ended the statement before: the network has lost the connection."""
        words = "no answer within %s s: the connection is closed"
        log.warning(words, conf.HEARTBEAT_S, extra={"action": "db.deadline"})
        self._shut()

    def _shut(self) -> None:
        """The exchange under way reads the end."""
        with suppress(Exception), socket.socket(fileno=os.dup(self._pg.socket)) as its:
            its.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        self._rests_until = time.monotonic() + REST_S
        wrapper, self._wrapper, self._pg = self._wrapper, None, None
        if wrapper is not None:
            _close(wrapper)

    def close(self) -> None:
        self._closed = True
        if self._is_busy:
            self._shut()
        else:
            self._drop()


def _close(wrapper: Any) -> None:
    """Django's own `close` refuses to be called on an event loop's thread; there is nothing here to wait for."""
    with suppress(Exception):
        wrapper.connection.close()
    wrapper.connection = None


@cache
def _named(sql: str) -> tuple[bytes, bytes]:
    """A name for the prepared statement, and the text with the server's own placeholders."""
    first, *rest = sql.split("%s")
    numbered = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
    return b"ravi_" + sha256(numbered.encode()).hexdigest()[:16].encode(), numbered.encode()


def _answer(statement: Statement, row: tuple[Any, ...]) -> tuple[int | None, Exception | None]:
    try:
        return statement.answer(row), None
    except LeaseLostError as error:
        return None, error


def append_repeatable(lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write = store.append) -> int:
    """Append; when the answer to an earlier try was lost on the way, finding our own row is success."""
    try:
        return store.settled(lease, entries, partial(write, lease, entries, turns))
    except IntegrityError:
        seq = store.already_appended(entries[0].id)
        if seq is None:
            raise
        return seq
