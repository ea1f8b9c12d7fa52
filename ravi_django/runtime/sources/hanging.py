"""A thread for one call that may hang, such as reading a directory on a server that does not answer, and an event loop
for one coroutine on the calling thread.

A call that is given up blocks neither other calls nor the end of the process: its thread is a daemon.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_at_work: set[Hashable] = set()
_lock = threading.Lock()


class Hangs(Exception):
    """The call took too long, or an earlier one still hangs."""


async def on_own_thread(key: Hashable, function: Callable[[], T], within_s: float) -> T:
    """Call it; raises what it raises, and Hangs after so many seconds. A call that was given up continues, and until it
    ends no other begins under its key in this process: a call that hangs costs one thread, not one per try."""
    with _lock:
        if key in _at_work:
            raise Hangs("an earlier call still hangs; check its disk or server")
        _at_work.add(key)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    try:
        threading.Thread(target=_call, args=(key, function, done), name="ravi-own", daemon=True).start()
    except RuntimeError:  # no more threads
        _leave(key)
        raise
    answer = asyncio.wrap_future(done)
    try:
        await asyncio.wait({answer}, timeout=within_s)
        if not answer.done():
            raise Hangs(f"no answer within {within_s:g} s; check its disk or server")
        return answer.result()
    finally:
        answer.cancel()


def _call(key: Hashable, function: Callable[[], T], done: Future[T]) -> None:
    try:
        answer = function()
    except BaseException as error:
        _leave(key)
        done.set_exception(error)
    else:
        _leave(key)
        done.set_result(answer)


def _leave(key: Hashable) -> None:
    with _lock:
        _at_work.discard(key)


def _after_fork() -> None:
    """The threads are the parent's."""
    global _at_work, _lock
    _at_work, _lock = set(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

END_S = 1.0  # for tasks that are left to handle their cancellation


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, which does not wait for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=END_S))
            loop.run_until_complete(asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=END_S))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
