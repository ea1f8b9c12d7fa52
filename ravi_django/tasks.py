"""Celery's part: messages that carry a run id and nothing else, and the beat's sweep."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

from celery import shared_task
from celery.signals import worker_process_shutdown, worker_ready, worker_shutdown, worker_shutting_down
from django.db import DatabaseError, connections

from ravi_django.conf import conf

log = logging.getLogger("ravi.tasks")


@shared_task(name="ravi.run", ignore_result=True)
def run(run_id: str) -> None:
    """Lease the run. Under the threads pool it goes to the process's event loop and the task is over; under prefork
    and solo, where tasks have the main thread, the task waits for the lease's end."""
    from ravi_django.runtime.worker import get_worker

    worker = get_worker()
    if threading.current_thread() is threading.main_thread():
        worker.drive(run_id)
    else:
        worker.hint(run_id)


@shared_task(name="ravi.sweep", ignore_result=True)
def sweep() -> None:
    """Find what no hint has reached. Put it in CELERY_BEAT_SCHEDULE every RAVI["SWEEP_S"] seconds."""
    from ravi_django.runtime.sweeper import sweep

    sweep()


@shared_task(name="ravi.mail_request", ignore_result=True)
def mail_request(request_id: str) -> None:
    """Write to the people who may answer a request; only where RAVI["REQUEST_EMAIL"] says so."""
    from ravi_django.runtime.mail import send

    send(request_id)


@worker_ready.connect
def _warm(sender: Any = None, **kwargs: Any) -> None:
    """A threads-pool worker makes its engine at once, so that the first run finds it ready and health can see it."""
    pool = getattr(sender, "pool_cls", "") or getattr(getattr(sender, "pool", None), "__class__", "")
    if "thread" in str(pool).lower():
        threading.Thread(target=_start, name="ravi-start", daemon=True).start()


def _start() -> None:
    """Import the model library, when an agent needs it, before the first run does; then look for work."""
    from ravi_django.capabilities.llm import warm
    from ravi_django.runtime.specs import uses_litellm
    from ravi_django.runtime.worker import get_worker

    worker = get_worker()
    try:
        is_wanted = uses_litellm()
    except DatabaseError:  # away just now: the first run imports it then
        is_wanted = False
    finally:
        connections.close_all()  # this thread's
    if is_wanted:
        warm()
    gc.collect()
    gc.freeze()  # a full collection over all that was imported stalls every run of the process for half a second
    worker.keep_looking()


@worker_shutting_down.connect
def _stop_claiming(**kwargs: Any) -> None:
    from ravi_django.runtime import worker

    if worker._worker is not None:
        worker._worker.stop_claiming()


@worker_shutdown.connect
@worker_process_shutdown.connect
def _drain(**kwargs: Any) -> None:
    from ravi_django.runtime.worker import close_worker

    log.info("draining for up to %g s", conf.DRAIN_S, extra={"action": "worker.drain"})
    close_worker()
