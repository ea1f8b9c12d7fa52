"""Has the outbox relayed soon after a commit: one hint stands for all the events of a moment."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from django.db import connections

from ravi_django.conf import conf

log = logging.getLogger("ravi.bus")

COALESCE_S = 0.02  # between two hints of a process
IDLE_S = 1.0  # the thread ends after so long without one

_wake = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def hint() -> None:
    """There may be something to relay. Never raises, and never waits for anything: from any thread, and the event
    loop's."""
    global _thread
    _wake.set()
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_carry, name="ravi-courier", daemon=True)
            _thread.start()


def on_events_written(sender: Any, **kwargs: Any) -> None:
    """A receiver of `events_written`."""
    hint()


def _carry() -> None:
    global _thread
    try:
        while True:
            if _wake.wait(IDLE_S):
                _wake.clear()
                _send()
                time.sleep(COALESCE_S)
                continue
            with _lock:
                if not _wake.is_set():
                    _thread = None
                    return
    finally:
        connections.close_all()  # this thread's


def _send() -> None:
    from ravi_django.runtime import background
    from ravi_django.runtime.bus import relay, site

    try:
        where = site.address()
        if where == site.MEMORY or (where is not None and conf.ENGINE == "inline"):
            relay.relay_safely()  # whoever reads it may be here, and nowhere else
        elif where is not None:
            background.hint("ravi.relay_events")
    except Exception as error:
        log.warning("the outbox waits for the sweep: %s", error, extra={"action": "bus.no_hint"})


def join(timeout: float = 10.0) -> None:
    """For tests: until nothing is under way."""
    thread = _thread
    if thread is not None:
        thread.join(timeout)


def _after_fork() -> None:
    """The thread is the parent's; what it held, and what others waited for, is new."""
    global _thread, _lock, _wake
    _thread, _lock, _wake = None, threading.Lock(), threading.Event()


os.register_at_fork(after_in_child=_after_fork)
