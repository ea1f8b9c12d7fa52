"""Hints: "this run may be claimable". They can be lost, late, repeated or reordered; the row is the truth."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from celery import current_app
from django.utils.module_loading import import_string
from kombu.pools import ProducerPool

from ravi_django.conf import conf
from ravi_django.db import transaction

log = logging.getLogger("ravi.dispatch")

WORKER = "ravi_django.engine.worker.worker.get_worker"  # the worker of this process; this package is below it

_cancel: Callable[[UUID], None] | None = None  # see `register_cancel`


def on_commit(run_id: UUID | str, send_hint: Callable[[UUID | str], Any] | None = None) -> None:
    """Hint after the caller's transaction has committed. Never raises."""
    transaction.on_commit(lambda: _guarded(send_hint or send, run_id), robust=True)


def _guarded(send_hint: Callable[[UUID | str], Any], run_id: UUID | str) -> None:
    try:
        send_hint(run_id)
    except Exception as error:
        log.warning("run %s: no hint sent: %s", run_id, error, extra={"action": "dispatch.failed"})


def send(run_id: UUID | str) -> None:
    """Hint now. Raises the broker's errors."""
    if conf.ENGINE == "inline":
        import_string(WORKER)().hint(run_id)
    elif conf.ENGINE != "manual":  # there `run_until_idle` looks for runs
        publish("ravi.run", str(run_id))


def register_cancel(cancel: Callable[[UUID], None] | None) -> None:
    """Set, while this process's worker lives, the function that cancels a run of it."""
    global _cancel
    _cancel = cancel


def cancel_here(run_id: UUID) -> None:
    """Cancel the run without waiting for a heartbeat, if this process executes it."""
    if _cancel is not None:
        _cancel(run_id)


PRODUCERS = 10  # connections of a process, at most
REST_S = 5.0  # after a failure no hint is sent for this long: each could cost its caller a connection timeout
CONNECT_S, ANSWER_S = 1.0, 5.0  # shorter than the site's own timeouts may be
_down_until = 0.0
_pools: dict[str, ProducerPool] = {}  # by the broker's address


def broker_connection() -> Any:
    """An unopened connection to the site's broker, with the site's options and short timeouts."""
    options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    connection: Any = current_app.connection_for_write(connect_timeout=CONNECT_S, transport_options=options)
    if connection.get_transport_cls().driver_type == "redis":
        connection.transport_options |= {"socket_connect_timeout": CONNECT_S, "socket_timeout": ANSWER_S}
    return connection


def _producers() -> ProducerPool:
    """A pool of our own, for the short timeouts."""
    address = str(current_app.conf.broker_write_url)
    if address not in _pools:
        _pools[address] = ProducerPool(broker_connection().Pool(limit=PRODUCERS), limit=PRODUCERS)
    return _pools[address]


def publish(task: str, *args: str) -> None:
    """Send a task, by its name, to the broker, once. Raises the broker's errors, and ConnectionError for REST_S after
    one."""
    global _down_until
    if time.monotonic() < _down_until:
        raise ConnectionError("the broker failed a moment ago; the sweep will send the hint")
    try:
        with _producers().acquire(block=True, timeout=ANSWER_S) as producer:
            current_app.tasks[task].apply_async(args=args, retry=False, ignore_result=True, producer=producer)
    except Exception:
        _down_until = time.monotonic() + REST_S
        raise


def send_many(run_ids: Sequence[UUID]) -> list[UUID]:
    """Hint several runs, up to the first failure; returns the runs that were not hinted."""
    for index, run_id in enumerate(run_ids):
        try:
            send(run_id)
        except Exception as error:
            log.warning("run %s: no hint sent: %s", run_id, error, extra={"action": "dispatch.failed"})
            return list(run_ids[index:])
    return []


os.register_at_fork(after_in_child=_pools.clear)  # the sockets belong to the parent
