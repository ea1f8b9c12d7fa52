"""Work that is no run: fan-outs, polls, what the event bus is to be given. A Celery task; without a broker a thread of
this process. As with runs a hint can be lost: the sweep finds from the rows what is left to do."""

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
from ravi_django.runtime.runs import hints

log = logging.getLogger("ravi.background")

THREADS = 2
WAITERS = frozenset({"ravi.poll_sources"})  # for servers outside: on threads that nothing else waits behind

_pools: dict[bool, ThreadPoolExecutor] = {}
_waiting: set[tuple[str, tuple[str, ...]]] = set()
_lock = threading.Lock()
_stopped_at = float("-inf")  # by time.monotonic()


def stop() -> None:
    """The worker ends: what runs here takes nothing new, and is over RAVI["DRAIN_S"] seconds from now. What is begun
    later is not meant."""
    global _stopped_at
    _stopped_at = time.monotonic()


def stopped_s(begun: float) -> float | None:
    """How many seconds ago work that was begun then (by time.monotonic()) was told to stop; None when it was not."""
    return time.monotonic() - _stopped_at if _stopped_at >= begun else None


def hint(task: str, *args: str) -> None:
    """Run a task of `ravi_django.tasks`, by its name, elsewhere. Never raises."""
    if conf.ENGINE == "inline":
        _in_this_process(task, args)
        return
    try:
        hints.publish(task, *args)
    except Exception as error:
        log.warning("%s: no hint sent: %s", task, error, extra={"action": "background.no_hint"})


def hint_on_commit(task: str, *args: str) -> None:
    transaction.on_commit(lambda: hint(task, *args), robust=True)


def _in_this_process(task: str, args: tuple[str, ...]) -> None:
    """One that waits to be begun is enough."""
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
    """The threads are the parent's, and so is what waits for them."""
    global _pools, _waiting, _lock
    _pools, _waiting, _lock = {}, set(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
