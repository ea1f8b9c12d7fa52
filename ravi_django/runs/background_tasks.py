"""Work outside of runs, such as fan-outs and polls: Celery tasks, or threads of this process without a broker.

A hint can be lost: the sweep finds the work in the rows.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from celery import current_app
from django.db import connections

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.runs import hints

log = logging.getLogger("ravi.background")

THREADS = 2
WAITERS = frozenset({"ravi.poll_sources"})  # wait for external servers, so they have threads of their own

_pools: dict[bool, ThreadPoolExecutor] = {}
_manual: dict[tuple[str, tuple[str, ...]], None] = {}  # with RAVI["ENGINE"] = "manual": the calls that wait, in order
_waiting: set[tuple[str, tuple[str, ...]]] = set()
_lock = threading.Lock()
_stopped_at = float("-inf")  # by time.monotonic()


def stop() -> None:
    """Have the work that runs here now take nothing new and end within RAVI["DRAIN_S"] seconds: the worker ends."""
    global _stopped_at
    _stopped_at = time.monotonic()


def stopped_s(begun: float) -> float | None:
    """Seconds since `stop` was called, for work that began at `begun` (time.monotonic()); None if it was not called."""
    return time.monotonic() - _stopped_at if _stopped_at >= begun else None


def hint(task: str, *args: str) -> None:
    """Run a task of `ravi_django.tasks`, by its name, in the background. Never raises."""
    if conf.ENGINE == "inline":
        _in_this_process(task, args)
        return
    if conf.ENGINE == "manual":
        if task not in WAITERS | {"ravi.look"}:
            _manual[task, args] = None
        return
    try:
        hints.publish(task, *args)
    except Exception as error:
        log.warning("%s: no hint sent: %s", task, error, extra={"action": "background.no_hint"})


def do_manual() -> None:
    """With RAVI["ENGINE"] = "manual": do the work that was hinted since the last time, and what that hints."""
    while _manual:
        task, args = next(iter(_manual))
        del _manual[task, args]
        current_app.tasks[task].run(*args)


def hint_on_commit(task: str, *args: str) -> None:
    transaction.on_commit(lambda: hint(task, *args), robust=True)


def _in_this_process(task: str, args: tuple[str, ...]) -> None:
    """Queue the task, unless the same call waits in the queue already."""
    waits = task in WAITERS
    with _lock:
        if (task, args) in _waiting:
            return
        _waiting.add((task, args))
        if waits not in _pools:
            _pools[waits] = ThreadPoolExecutor(THREADS, thread_name_prefix="ravi-polls" if waits else "ravi-background")
        _pools[waits].submit(_do, task, args)


def _do(task: str, args: tuple[str, ...]) -> None:
    with _lock:
        _waiting.discard((task, args))
    try:
        current_app.tasks[task].run(*args)
    except Exception:
        log.exception("%s failed", task, extra={"action": "background.failed"})
    finally:
        connections.close_all()  # this thread's


def _after_fork() -> None:
    """The threads and their queue belong to the parent."""
    global _pools, _waiting, _lock
    _pools, _waiting, _lock = {}, set(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
