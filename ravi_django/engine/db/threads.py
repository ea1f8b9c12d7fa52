"""Threads for an event loop. Runs use the database only on such threads.

No thread is held across an await of a model or a tool: hundreds of runs share these threads.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, InternalError, OperationalError, connections

from ravi_django.conf import conf
from ravi_django.engine.db.connections import limit_waits

log = logging.getLogger("ravi.database")

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_S = 30.0  # for running calls to end when the threads close; a statement may take 9 s by default
AWAY_S = 300.0  # how long a call of a run's code is repeated
REPEAT_S = 0.5  # between two tries of such a call, each of which takes up to RETRY_S
RETRY_S = 5.0  # how long a write is repeated while the database restarts; then another lease repeats it


class Threads:
    """A pool of daemon threads, made when needed. The thread that became idle last is used first."""

    def __init__(self, size: int, name: str) -> None:
        self._name = name
        self._size = size
        self._made = 0
        self._idle: list[Thread] = []
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def _give(self, call: Call) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            if self._idle:
                self._idle.pop().calls.put(call)
            elif not self._has_room or not self._makes(call):
                self._waiting.append(call)

    @property
    def waiting(self) -> int:
        """How many calls no thread has begun."""
        return len(self._waiting)

    @property
    def _has_room(self) -> bool:
        return self._made < self._size

    def _makes(self, call: Call) -> bool:
        """False if no thread can be started: the others then make the call. So it is while the interpreter ends, from
        Python 3.12 on."""
        try:
            self._make(call)
        except RuntimeError:
            if not self._serving:
                raise
            return False
        return True

    @property
    def _serving(self) -> int:
        """How many threads take calls."""
        return self._made

    def _make(self, call: Call) -> Thread:
        thread = Thread(self, f"{self._name}_{self._made + 1}", call)
        self._made += 1  # only now: the system may have no thread left
        return thread

    def _next(self, thread: Thread) -> Call | None:
        """Under the lock. None notes the thread as idle."""
        if self._waiting:
            return self._waiting.popleft()
        self._idle.append(thread)
        return None

    def serve(self, thread: Thread) -> None:
        """Runs on the thread, until it gets None."""
        call = thread.calls.get()
        while call is not None:
            thread.call = call
            if self._begin(thread, call):
                call.perform()
            thread.call = None
            following = self._after(thread, call)
            if thread.is_ended:
                return
            del call  # frees its values while the thread waits for the next one
            call = following or thread.calls.get()

    def _begin(self, thread: Thread, call: Call) -> bool:
        """Whether the call must still be made."""
        return True

    def _after(self, thread: Thread, done: Call) -> Call | None:
        with self._lock:
            return self._next(thread)


class Call:
    """A function that a thread calls for an event loop."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.thread: Thread | None = None  # once it runs
        self.is_over = False  # True also when it was given up

    def perform(self) -> None:
        try:
            self.answer(self.function(), None)
        except BaseException as error:
            self.answer(None, error)

    def answer(self, value: Any, error: BaseException | None) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.settle, value, error)

    def settle(self, value: Any, error: BaseException | None) -> None:
        """On the loop's thread."""
        if self.future.done():  # cancelled
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot hold it
            self.future.set_exception(RuntimeError("StopIteration"))
        else:
            self.future.set_exception(error)


async def on_thread(function: Callable[[], Any]) -> None:
    """`asyncio.to_thread`, which works also while the interpreter ends: from Python 3.12 on it holds the loop then."""
    call = Call(function)
    try:
        threading.Thread(target=call.perform, name="ravi-end", daemon=True).start()
    except RuntimeError:
        call.perform()
    await call.future


class Thread(threading.Thread):
    def __init__(self, pool: Threads, name: str, first: Call) -> None:
        super().__init__(name=name, daemon=True)
        self._pool = pool
        self.is_lost = False  # its call was given up
        self.is_ended = False
        self.call: Call | None = None  # that it performs
        self.calls: SimpleQueue[Call | None] = SimpleQueue()
        self.calls.put(first)
        self.start()

    def run(self) -> None:
        self._pool.serve(self)


class DatabaseThreads(Threads):
    """A pool of threads with one connection each. Calls are retried while the database is away, so they must be safe to
    repeat.

    Every journaled call uses it: one queue and one callback cost half as much as the chained futures of
    `run_in_executor`.
    """

    def __init__(self, size: int, name: str = "ravi-db") -> None:
        super().__init__(size, name)
        self._threads: list[Thread] = []

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on a database thread. Raises its errors."""
        answer: T = await self._start(function, args, kwargs)
        return answer

    async def see_through(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T | None, Exception | None, bool]:
        """`call` for a write that must end even if the caller is cancelled. Returns its result or its error, and
        whether the caller was cancelled meanwhile."""
        future, cancelled = self._start(function, args, kwargs), False
        while not future.done():
            try:
                await asyncio.wait([future])  # a cancelled caller does not cancel the future
            except asyncio.CancelledError:
                cancelled = True
        error: Any = future.exception()
        return None if error else future.result(), error, cancelled

    def _start(self, function: Callable[..., Any], args: Any, kwargs: Any) -> asyncio.Future[Any]:
        call = Call(partial(with_retry, function, *args, **kwargs))
        self._give(call)
        return call.future

    def _make(self, call: Call) -> Thread:
        self._threads.append(thread := super()._make(call))
        return thread

    def serve(self, thread: Thread) -> None:
        limit_waits()
        super().serve(thread)
        connections.close_all()

    def close(self) -> None:
        """Wait for running calls, at most CLOSE_S, and have the threads close their connections. Calls that have not
        ended by then raise RuntimeError: their callers may wait even if cancelled."""
        with self._lock:
            self._closed = True
        for thread in self._threads:
            thread.calls.put(None)
        give_up = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        if hanging := [thread for thread in self._threads if thread.is_alive()]:
            message = "%s threads of %s hang, and are left"
            log.warning(message, len(hanging), self._name, extra={"action": "db.threads_left"})
            for call in [thread.call for thread in hanging] + list(self._waiting):
                if call is not None:
                    call.answer(None, RuntimeError(f"the threads {self._name} are closed, and one hangs in a call"))


_readers: DatabaseThreads | None = None


def readers() -> DatabaseThreads:
    """The threads on which a web process reads events; made when first used."""
    global _readers
    if _readers is None:
        _readers = DatabaseThreads(conf.DB_THREADS, "ravi-read")
    return _readers


def forget_readers(*, close: bool = False) -> None:
    """Forget the threads: at the end of tests (`close`), or after a fork, where they belong to the parent."""
    global _readers
    if _readers is not None and close:
        _readers.close()
    _readers = None


def with_retry(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`; if the connection is lost, try again on a new one for up to RETRY_S."""
    give_up = 0.0
    pause = 0.05
    while True:
        try:
            return function(*args, **kwargs)
        except (OperationalError, InterfaceError, InternalError) as error:
            broken = _drop_broken_connections(every=is_disconnect(error))
            give_up = give_up or time.monotonic() + RETRY_S  # the first try may have taken longer
            if time.monotonic() + pause > give_up or not (broken or _is_lock_timeout(error)):
                raise
            log.warning("database call failed, trying again: %s", error, extra={"action": "db.retry"})
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


def _drop_broken_connections(*, every: bool) -> bool:
    """Close the connections that no longer work, or `every` one; returns whether one was closed."""
    broken = every
    for connection in connections.all(initialized_only=True):
        if every or connection.connection is None or not connection.is_usable():
            broken = True
            with suppress(Exception):
                connection.close()
    return broken


def is_disconnect(error: Exception) -> bool:
    """Whether the server is gone, is shutting down, is full, or has become a read-only standby. The connection may
    still look usable: that to a standby is, and leaving `atomic` opens a new one."""
    state = getattr(error.__cause__ or error, "sqlstate", "")  # None: the server was not reached
    return state is None or state.startswith(("08", "25006", "25P03", "53", "57P"))


def may_pass(error: Exception) -> bool:
    """Whether the same write may succeed later: the database is away, full, locked or too slow."""
    if not isinstance(error, OperationalError | InterfaceError | InternalError):
        return False
    if isinstance(error.__cause__, sqlite3.Error):
        return "locked" in str(error)
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or state.startswith(("08", "25006", "25P03", "40", "53", "55P03", "57"))


def _is_lock_timeout(error: Exception) -> bool:
    text = str(error)
    return "lock timeout" in text or "database is locked" in text or "deadlock detected" in text
