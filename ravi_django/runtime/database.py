"""The only way from the event loop to the database: a few threads, each with a connection of its own.

Nothing here is held across an await of a model or a tool: hundreds of runs share these threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, connections

from ravi_django.conf import conf

log = logging.getLogger("ravi.database")

P = ParamSpec("P")
T = TypeVar("T")

RETRY_S = 5.0  # how long a write survives a restart of the database; then the lease's takeover is the remedy


class DatabaseThreads:
    """A fixed pool. Calls are retried while the database is away, so they must be safe to repeat."""

    def __init__(self, size: int, name: str = "ravi-db") -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=name, initializer=_limit_waits)
        self._closed = False

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on a database thread. Raises what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: with_retry(function, *args, **kwargs))

    def close(self) -> None:
        """Wait for calls under way, then close the threads' connections."""
        if self._closed:
            return
        self._closed = True
        gate = threading.Barrier(self._pool._max_workers)
        for _ in range(self._pool._max_workers):
            self._pool.submit(_close_connections, gate)
        self._pool.shutdown(wait=True)


_readers: DatabaseThreads | None = None


def readers() -> DatabaseThreads:
    """The threads that a web process reads events on; made when first used."""
    global _readers
    if _readers is None:
        _readers = DatabaseThreads(conf.DB_THREADS, "ravi-read")
    return _readers


def forget_readers(*, close: bool = False) -> None:
    """Let go of the threads: at the end of tests (`close`), or after a fork, where the parent's are not ours."""
    global _readers
    if _readers is not None and close:
        _readers.close()
    _readers = None


def with_retry(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it; when the connection is gone, try on a new one for a bounded time."""
    give_up = time.monotonic() + RETRY_S
    pause = 0.05
    while True:
        try:
            return function(*args, **kwargs)
        except (OperationalError, InterfaceError) as error:
            broken = _drop_broken_connections()
            if time.monotonic() + pause > give_up or not (broken or _is_lock_timeout(error)):
                raise
            log.warning("database call failed, trying again: %s", error, extra={"action": "db.retry"})
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


def _drop_broken_connections() -> bool:
    """Close connections that no longer work; says whether any was."""
    broken = False
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or not connection.is_usable():
            broken = True
            with suppress(Exception):
                connection.close()
    return broken


def _is_lock_timeout(error: Exception) -> bool:
    text = str(error)
    return "lock timeout" in text or "database is locked" in text or "deadlock detected" in text


def _limit_waits() -> None:
    """Mark the thread: its PostgreSQL connections wait for locks and statements less long than a heartbeat."""
    _local.limited = True


_local = threading.local()


def limit_new_connection(sender: Any, connection: Any, **kwargs: Any) -> None:
    """On `connection_created`: a database thread must not hang longer than its leases live."""
    if connection.vendor == "postgresql" and getattr(_local, "limited", False):
        millis = int(conf.HEARTBEAT_S * 900)
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {millis}; SET statement_timeout = {millis}")


def _close_connections(gate: threading.Barrier) -> None:
    connections.close_all()
    with suppress(threading.BrokenBarrierError):
        gate.wait(timeout=5)  # so that every thread gets one of these
