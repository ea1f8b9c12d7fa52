"""Commit the rows of effects: the one write of each journaled call.

An append of one statement uses a connection of the event loop: to wake a thread would cost as much as the statement.
All other appends, and those that fail there, go to the database threads, which wait and retry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections

from ravi_django.conf import conf
from ravi_django.db import MODE, alias, connection
from ravi_django.engine.db.connections import SHAPES
from ravi_django.engine.db.postgres import numbered
from ravi_django.engine.db.threads import DatabaseThreads, is_disconnect, may_pass
from ravi_django.engine.journal import append as journal_append, fence
from ravi_django.engine.journal.entries import Entry, NewTurn
from ravi_django.engine.journal.fence import AlreadyWritten, Statement
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease import paths
from ravi_django.kernel import LeaseLostError
from ravi_django.runs.budgets import ledger

log = logging.getLogger("ravi.appending")

Write = Callable[..., int]  # (lease, entries, turns) -> seq of the first row; may write more in the same transaction

REST_S = 5.0  # before a failed connection is opened again


Answer = tuple[int | None, Exception | None, bool]
Key = tuple[UUID, int, type]  # of the appends that may share a commit: run, epoch, and the type of the write


@dataclass(slots=True, eq=False)
class Part:
    """An append that shares its commit with others."""

    entries: list[Entry]
    turns: list[NewTurn]
    write: Any
    answer: asyncio.Future[tuple[int | None, Exception | None]]


class Appender:
    """Used on the event loop's thread. `size`: the number of the loop's connections."""

    def __init__(self, database: DatabaseThreads, size: int = 1) -> None:
        self.database = database
        self.connections = [LoopConnection() for _ in range(size if connection.vendor == "postgresql" else 0)]
        self._writing: set[asyncio.Task[None]] = set()
        self._groups: dict[Key, list[Part]] = {}  # the parts that wait for a running commit

    async def append(
        self, lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write | None = None
    ) -> Answer:
        """Append with `write`, once: a second try finds the rows of the first. Waits for the end even if cancelled.
        Plain appends of a lease that come while one of them is committed share the next commit, and so do writes that
        can be `joined` and come at the same time.

        Returns the seq of the first row, or the error, and whether the caller was cancelled meanwhile.
        """
        if write is not None and not hasattr(write, "joined"):
            return await self._append(lease, entries, turns, write)
        key = lease.run_id, lease.epoch, type(write)
        waiting = self._groups.get(key)
        if waiting is None:
            waiting = self._groups[key] = []
            if write is None:
                try:
                    return await self._append(lease, entries, turns)
                finally:
                    self._go_on(key, lease)
            self._go_on(key, lease, begins=True)
        waiting.append(part := Part(entries, turns, write, asyncio.get_running_loop().create_future()))
        cancelled = False
        while not part.answer.done():
            try:
                await asyncio.wait([part.answer])
            except asyncio.CancelledError:
                cancelled = True
        seq, error = part.answer.result()
        return seq, error, cancelled

    def _go_on(self, key: Key, lease: Lease, *, begins: bool = False) -> None:
        """Write what waits, if anything does."""
        if not begins and not self._groups[key]:
            del self._groups[key]
            return
        with paths.entered(None):  # not part of the run that appends
            task = asyncio.create_task(self._write_groups(key, lease), context=Context())
        self._writing.add(task)
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if task.cancelled():  # perhaps before its first step: callers wait for their answers even if cancelled
            for part in self._groups.pop(key, []):
                part.answer.set_exception(asyncio.CancelledError())

    async def _write_groups(self, key: Key, lease: Lease) -> None:
        parts: list[Part] = []
        try:
            while parts := self._groups[key]:
                self._groups[key] = []
                await self._write_group(lease, parts)
        except BaseException as error:  # the process ends
            for part in (*parts, *self._groups[key]):
                if not part.answer.done():
                    part.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._groups[key]

    async def _write_group(self, lease: Lease, parts: list[Part]) -> None:
        """Append all parts in one transaction; if that is refused, each in its own."""
        first, *others = parts
        entries = [entry for part in parts for entry in part.entries]
        turns = [turn for part in parts for turn in part.turns]
        write = first.write.joined([part.write for part in others]) if first.write and others else first.write
        seq, error, _ = await self._append(lease, entries, turns, write)
        if error is not None and others and not (isinstance(error, LeaseLostError) or may_pass(error)):
            for part in parts:
                await self._write_group(lease, [part])
            return
        for part in parts:
            part.answer.set_result((seq, error))
            seq = None if seq is None else seq + len(part.entries)

    async def _append(
        self, lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write | None = None
    ) -> Answer:
        cancelled = False
        idle = next((one for one in self.connections if one.is_idle), None)
        if idle is None:
            if wanted := next((one for one in self.connections if one.is_wanted), None):
                wanted.open(self.database)
        elif write is None and not ledger.concerns(lease, entries):
            statement = fence.append_statement(lease, entries, turns)
            if statement is not None:
                row, cancelled = await idle.execute(statement)
                if row:
                    return statement.answer(row), None, cancelled
        seq, error, again = await self.database.see_through(
            append_repeatable, lease, entries, turns, write or journal_append.append
        )
        return seq, error, cancelled or again

    def copy(self) -> Appender:
        """A copy with the same connections."""
        made = copy(self)
        made.database, made._groups = copy(self.database), {}
        return made

    def close(self) -> None:
        """Close the connections. The threads repeat a running append."""
        for one in self.connections:
            one.close()


class LoopConnection:
    """One append at a time."""

    def __init__(self) -> None:
        self._wrapper: Any = None  # Django's wrapper, which made the connection
        self._raw: Any = None  # psycopg's AsyncConnection on the same socket
        self._begin: list[str] = []  # behind a pooler each append is a transaction with its own limits
        self._is_busy = False
        self._cancelled = False  # the caller, meanwhile
        self._rests_until = 0.0
        self._closed = False

    @property
    def is_idle(self) -> bool:
        return self._raw is not None and not self._is_busy

    @property
    def is_wanted(self) -> bool:
        return self._raw is None and not (self._is_busy or self._closed) and time.monotonic() >= self._rests_until

    def open(self, database: DatabaseThreads) -> None:
        """Open it in the background."""
        self._is_busy = True
        with paths.entered(None):  # not part of the run that appends
            self._opening = asyncio.create_task(self._open(database))

    async def _open(self, database: DatabaseThreads) -> None:
        from psycopg import AsyncConnection

        try:
            await database.call(self._connect)
            raw: Any = AsyncConnection(self._wrapper.connection.pgconn)
            await raw.set_autocommit(True)
            raw.wait = self._wait
            limits = getattr(self._wrapper.connection, "ravi_limits", None)
            self._begin = [] if limits is None else [f"BEGIN {MODE}", limits]
            raw.prepare_threshold = None if self._begin else 0
            raw.prepared_max = SHAPES
            self._raw = raw
        except Exception as error:
            log.debug("no connection for the loop: %s", error)
            self._drop()
        finally:
            self._is_busy = False
            if self._closed:
                self._drop()

    def _connect(self) -> None:
        """On a database thread: connect like the thread's own connection, with the same limits."""
        of_thread = connections[alias()]
        of_thread.ensure_connection()
        wrapper = of_thread.copy()
        wrapper.inc_thread_sharing()
        wrapper.connect()
        self._drop()  # the connection of a loop that has ended meanwhile
        self._wrapper = wrapper
        if self._closed:
            self._drop()

    async def execute(self, statement: Statement) -> tuple[tuple[Any, ...] | None, bool]:
        """Returns the statement's row, or (), and whether the caller was cancelled meanwhile. The row is None if the
        statement failed; it may have been committed."""
        self._is_busy, self._cancelled = True, False
        deadline = asyncio.get_running_loop().call_later(conf.HEARTBEAT_S, self._overdue)
        try:
            with paths.entered(None):  # psycopg before 3.3.7 makes tasks, which are not the run's
                row = await self._perform(statement)
        except Exception as error:
            log.warning("an append failed and is repeated by a thread: %s", error, extra={"action": "append.repeated"})
            if self._is_useless_after(error):
                self._drop()
            row = None
        except BaseException:  # the loop ends
            self._drop()
            raise
        finally:
            deadline.cancel()
            self._is_busy = False
        return row, self._cancelled

    async def _perform(self, statement: Statement) -> tuple[Any, ...]:
        from psycopg import AsyncRawCursor

        raw, cursor = self._raw, AsyncRawCursor(self._raw)
        if not self._begin:
            await cursor.execute(numbered(statement.sql)[0], statement.params)
            return await cursor.fetchone() or ()
        try:
            async with raw.pipeline():
                for begin in self._begin:
                    await raw.execute(begin)
                await cursor.execute(numbered(statement.sql)[0], statement.params)
                await raw.execute("COMMIT")
        except Exception:
            if not raw.closed:
                await raw.rollback()
            raise
        return await cursor.fetchone() or ()

    async def _wait(self, exchange: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces psycopg's `wait`, which cancels the statement with its caller."""
        from psycopg.waiting import wait_async

        while True:
            try:
                return await wait_async(exchange, self._raw.pgconn.socket, conf.HEARTBEAT_S)
            except asyncio.CancelledError:
                self._cancelled = True

    def _is_useless_after(self, error: Exception) -> bool:
        """An error of the server leaves the connection usable, unless its prepared statements are invalid now."""
        is_stale = getattr(error, "sqlstate", None) in ("0A000", "26000")
        return is_stale or is_disconnect(error) or bool(self._raw.pgconn.transaction_status)

    def _overdue(self) -> None:
        """The server would have cancelled the statement before: the network has lost the connection."""
        warning = "no answer within %s s: the connection is closed"
        log.warning(warning, conf.HEARTBEAT_S, extra={"action": "db.deadline"})
        self._shut()

    def _shut(self) -> None:
        """Have the running statement read the end of the connection."""
        with suppress(Exception), socket.socket(fileno=os.dup(self._raw.pgconn.socket)) as copied:
            copied.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        """Close the connection. Django's own `close` cannot be called on an event loop's thread."""
        self._rests_until = time.monotonic() + REST_S
        if self._wrapper is not None:
            with suppress(Exception):
                self._wrapper.connection.close()
            self._wrapper.connection = None
        self._wrapper = self._raw = None

    def close(self) -> None:
        self._closed = True
        if self._is_busy:
            self._shut()
        else:
            self._drop()


async def sleep_shielded(seconds: float) -> bool:
    """Sleep; returns whether the caller was cancelled meanwhile."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        return True
    return False


def append_repeatable(
    lease: Lease, entries: list[Entry], turns: list[NewTurn], write: Write = journal_append.append
) -> int:
    """Append. If an earlier try was committed and its answer lost, return the seq of its first row. Rows of which an
    earlier try has committed only some, with others, are refused: each append that came with them is repeated alone."""
    next_seq = lease.next_seq
    try:
        return ledger.settled(lease, entries, partial(write, lease, entries, turns))
    except AlreadyWritten as written:
        return int(written.args[0])
    except Exception:
        lease.next_seq = next_seq  # rolled back
        raise
