"""The event loop, database threads and appender that all engines of a test process share.

A new set for each test would take about 40 ms of CPU, mostly to connect to the database. The connections are closed
before Django destroys a test database, and at the end of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import wraps
from typing import Any, TypeVar

from django.db import connections
from django.db.backends.base.creation import BaseDatabaseCreation

from ravi_django.conf import conf
from ravi_django.engine.db.threads import DatabaseThreads
from ravi_django.engine.lease.appender import Appender
from ravi_django.engine.worker.engine import Engine
from ravi_django.testing import memory

T = TypeVar("T")

CANCEL_S = 5.0  # until a cancelled task is abandoned
POOL_SETTINGS = (
    "ENGINE",
    "LEASE_S",
    "HEARTBEAT_S",
    "DB_THREADS",
)  # a test that overrides one of these gets its own pool


class _Pool:
    """Database connections, the settings that they were created with, and the loop that uses them now."""

    def __init__(self, settings: tuple[Any, ...]) -> None:
        self.settings = settings
        self.appender = Appender(DatabaseThreads(int(conf.DB_THREADS)))
        self.loop: asyncio.AbstractEventLoop | None = None
        self.engines = 0  # on that loop


_lock = threading.Lock()
_loop_lock = threading.Lock()
_pool: _Pool | None = None
_runner: asyncio.Runner | None = None
_abandoned: list[object] = []  # kept: closing a parent's loop would change the parent's epoll
_watches_databases = False


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on a shared loop; on a new loop while another thread uses the shared one."""
    global _runner
    if not _loop_lock.acquire(blocking=False):
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(main)
    try:
        _runner = _runner or asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        try:
            return _runner.run(main, context=copy_context())
        finally:
            if not _cancel_leftover_tasks(_runner.get_loop()):
                _abandon()
    finally:
        _loop_lock.release()


def _cancel_leftover_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel them as `asyncio.run` does. After an exception of a signal handler, such as a test's timeout, the main
    task is among them. False when a task does not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    return not left or not loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_S))[1]


def _abandon() -> None:
    """Leave the loop and the connections; the next use creates new ones."""
    global _pool, _runner
    _abandoned.extend((_pool, _runner))
    _pool = _runner = None


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    """An engine on the running loop, closed at the end. Its `on_promoted` does nothing."""
    loop = asyncio.get_running_loop()
    pool = _borrow(loop)
    try:
        made = Engine(on_promoted=lambda run_id: None, appender=pool.appender.copy() if pool else None)
        try:
            yield made
        finally:
            await made.close(drain_s=0.5)
    finally:
        if pool is not None:
            with _lock:
                pool.engines -= 1


def _borrow(loop: asyncio.AbstractEventLoop) -> _Pool | None:
    """None while an engine on another loop, or with other settings, uses the pool."""
    global _pool
    settings = (*(getattr(conf, name) for name in POOL_SETTINGS), repr(connections.settings))
    with _lock:
        if _pool is not None and _pool.engines:
            if _pool.loop is not loop or _pool.settings != settings:
                return None
        elif _pool is None or _pool.settings != settings:
            _close_pool()
            _pool = _Pool(settings)
            _close_before_destroy()
        _pool.loop = loop
        _pool.engines += 1
        return _pool


def close() -> None:
    """Close the loop, the threads and their connections. Raises RuntimeError while an engine uses them."""
    global _runner
    with _lock:
        if _pool is not None and _pool.engines:
            raise RuntimeError("an engine is running: close its connections after its end")
        _close_pool()
    with _loop_lock:
        if _runner is not None:
            _runner.close()
        _runner = None


def _close_pool() -> None:
    global _pool
    if _pool is not None:
        _pool.appender.close()
        _pool.appender.database.close()
    _pool = None


def _close_before_destroy() -> None:
    """Patch Django, which sends no signal before it destroys a test database. PostgreSQL does not drop one in use."""
    global _watches_databases
    if _watches_databases:
        return
    _watches_databases = True
    destroy = BaseDatabaseCreation.destroy_test_db

    @wraps(destroy)
    def destroy_test_db(*args: Any, **kwargs: Any) -> None:
        close()
        memory.forget()
        destroy(*args, **kwargs)

    BaseDatabaseCreation.destroy_test_db = destroy_test_db  # type: ignore[method-assign]


def _at_exit() -> None:
    """Without `Runner.close`, which starts a thread: some versions of Python refuse that at exit."""
    with _lock:
        _close_pool()
    if _runner is not None and not _runner.get_loop().is_running():
        _runner.get_loop().close()


def _after_fork() -> None:
    """The parent's threads do not run in this process, and its connections and loop remain the parent's."""
    global _lock, _loop_lock
    _lock, _loop_lock = threading.Lock(), threading.Lock()
    _abandon()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
