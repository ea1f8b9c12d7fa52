"""A connection of the event loop's own, for the one statement that every journaled call costs.

It is sent and its answer read without blocking, so the loop goes on meanwhile, and no thread has to be woken on the
way there and back: that costs as much as the statement. One at a time; whatever does not fit in (another is under way,
the server refuses, the connection breaks) is done by the database threads, which can wait, try again and say why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from django.db import connections

from ravi_django.conf import conf
from ravi_django.db import alias, is_shared

log = logging.getLogger("ravi.wire")

_OK = (1, 2)  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
REST_S = 5.0  # after a failure the threads do it all for this long
SHAPES = 30  # statements that stay prepared; each costs the server 0.4 MB


@dataclass(frozen=True, slots=True)
class Statement:
    """What a call comes down to: one statement of text parameters, and what its only value, or none, means."""

    sql: str
    params: Sequence[str | None]
    answer: Callable[[bytes | None], Any]  # raises what the call raises


Done = Callable[[Any, BaseException | None], None]


class Wire:
    """Used on the loop's thread alone, but for `open` and `close`."""

    def __init__(self) -> None:
        self._wrapper: Any = None  # Django's, which nobody else knows of
        self._pg: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = -1  # a broken connection does not know its own any more
        self._prepared: set[bytes] = set()
        self._call: tuple[Statement, Done, Callable[[], None]] | None = None  # under way
        self._deadline: asyncio.TimerHandle | None = None  # of it
        self._results: list[Any] = []
        self._preparing = b""
        self._rests_until = 0.0
        self._opening = False
        self._closed = False

    @property
    def ready(self) -> bool:
        return self._pg is not None and self._call is None

    @property
    def wanted(self) -> bool:
        """Whether to open it."""
        return self._pg is None and not (self._opening or self._closed) and time.monotonic() >= self._rests_until

    def opening(self) -> None:
        self._opening = True

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect, on a database thread, as its own connection is: with the same limits on waiting."""
        wrapper = None
        try:
            mine = connections[alias()]
            mine.ensure_connection()
            if mine.vendor == "postgresql" and not is_shared(mine):
                wrapper = mine.copy()
                wrapper.inc_thread_sharing()
                wrapper.connect()
                wrapper.connection.pgconn.nonblocking = 1
            loop.call_soon_threadsafe(self._opened, wrapper, loop)
        except Exception as error:
            log.debug("no connection for the loop: %s", error)
            if wrapper is not None:
                wrapper.close()
            try:
                loop.call_soon_threadsafe(self._opened, None, loop)
            except RuntimeError:  # the loop is closed
                self._opening = False

    def _opened(self, wrapper: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._opening = False
        if wrapper is None:
            self._rests_until = time.monotonic() + REST_S
            return
        pg = wrapper.connection.pgconn
        try:
            if self._closed:
                raise NotImplementedError
            loop.add_reader(pg.socket, self._readable)
        except NotImplementedError:  # a loop that reads sockets of its own alone
            self._closed = True
            _close(wrapper)
            return
        self._wrapper, self._pg, self._loop, self._socket = wrapper, pg, loop, pg.socket
        self._prepared, self._results = set(), []

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop. Drop a pending answer of the previous loop."""
        if self._pg is None or loop is self._loop:
            return
        if self._call is not None:
            self._taken()
            self._drop()
            return
        assert self._loop is not None
        self._loop.remove_reader(self._socket)
        self._loop = loop
        loop.add_reader(self._socket, self._readable)

    # ------------------------------------------------------------------------------------------- one statement

    def send(self, statement: Statement, done: Done, failed: Callable[[], None]) -> None:
        """Exactly one of the two is called, later. `failed` says nothing of what has happened at the server: do it
        again in a way that can be repeated."""
        assert self._loop is not None
        self._call = statement, done, failed
        if self._deadline is None:
            self._deadline = self._loop.call_later(conf.HEARTBEAT_S, self._overdue)
        name, sql = _named(statement.sql)
        try:
            if name in self._prepared:
                self._pg.send_query_prepared(name, _encoded(statement.params))
            elif len(self._prepared) == SHAPES:
                self._pg.send_query_params(sql, _encoded(statement.params))
            else:
                self._preparing = name
                self._pg.send_prepare(name, sql)
            self._flush()
        except Exception as error:
            self._break(error)

    def _flush(self) -> None:
        assert self._loop is not None
        try:
            if self._pg.flush():  # more than the socket takes at once
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except Exception as error:
            self._break(error)

    def _readable(self) -> None:
        try:
            self._pg.consume_input()
            while not (busy := self._pg.is_busy()) and (result := self._pg.get_result()) is not None:
                self._results.append(result)
            if not busy and self._pg.status != 0:  # CONNECTION_OK
                raise ConnectionError("the server closed the connection")
        except Exception as error:
            self._break(error)
            return
        if not busy and self._results:  # else more is to come, or it was a notice
            results, self._results = self._results, []
            self._answered(results)

    def _answered(self, results: list[Any]) -> None:
        """All results up to ReadyForQuery: the statement's own comes before its commit, which can still fail."""
        result = next((one for one in results if one.status not in _OK), results[0])
        if result.status not in _OK:
            self._break(Exception(result.error_message.decode(errors="replace")))
        elif self._preparing:
            self._prepared.add(self._preparing)
            self._preparing = b""
            assert self._call is not None
            self.send(*self._call)
        else:
            statement, done, _ = self._taken()
            try:
                answer = statement.answer(result.get_value(0, 0) if result.ntuples else None)
            except Exception as error:
                done(None, error)
            else:
                done(answer, None)

    def _taken(self) -> tuple[Statement, Done, Callable[[], None]]:
        """The call that was under way."""
        assert self._call is not None and self._deadline is not None
        self._deadline.cancel()
        call, self._call, self._deadline = self._call, None, None
        return call

    # ------------------------------------------------------------------------------------------------- the end

    def _overdue(self) -> None:
        """The server would have ended the statement before: the network has lost the connection."""
        error = TimeoutError(f"no answer within {conf.HEARTBEAT_S} s: the connection is closed")
        log.warning("%s", error, extra={"action": "db.deadline"})
        self._break(error)

    def _break(self, error: Exception) -> None:
        """Whatever it was, the threads find out: they do the statement again."""
        if self._call is not None:
            log.warning("an append failed and is repeated by a thread: %s", error, extra={"action": "append.repeated"})
        self._rests_until = time.monotonic() + REST_S
        self._drop()

    def _drop(self) -> None:
        if self._pg is None:
            return
        assert self._loop is not None
        with suppress(Exception):
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        wrapper, self._wrapper, self._pg = self._wrapper, None, None
        with suppress(Exception):
            _close(wrapper)
        self._preparing = b""
        if self._call is not None:
            self._taken()[2]()

    def close(self) -> None:
        """On the loop's thread, or when the loop has ended. What is under way is left to the threads."""
        self._closed = True
        self._drop()


def _close(wrapper: Any) -> None:
    """Django's own `close` refuses to be called on an event loop's thread; there is nothing here to wait for."""
    wrapper.connection.close()
    wrapper.connection = None


@cache
def _named(sql: str) -> tuple[bytes, bytes]:
    """A name for the prepared statement, and the text with the server's own placeholders."""
    first, *rest = sql.split("%s")
    numbered = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
    return b"ravi_" + sha256(numbered.encode()).hexdigest()[:16].encode(), numbered.encode()


def _encoded(params: Sequence[str | None]) -> list[bytes | None]:
    return [None if param is None else param.encode() for param in params]
