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


@shared_task(name="ravi.look", ignore_result=True)
def look() -> None:
    """Drive whatever can be claimed: one hint that stands for many runs."""
    from ravi_django.runtime import background
    from ravi_django.runtime.worker import get_worker

    worker = get_worker()
    if threading.current_thread() is not threading.main_thread():
        worker.look()
    elif worker.drive_next():  # under prefork and solo one run a task, as each task of theirs has
        background.hint(look)


@shared_task(name="ravi.fan_out", ignore_result=True)
def fan_out(publication_id: str) -> None:
    """Deliver what was published to those who follow."""
    from ravi_django.runtime import fan_out

    fan_out.run(publication_id)


@shared_task(name="ravi.mail_request", ignore_result=True)
def mail_request(request_id: str) -> None:
    """Write to the people who may answer a request; only where RAVI["REQUEST_EMAIL"] says so."""
    from ravi_django.runtime.mail import send

    send(request_id)


@shared_task(name="ravi.relay_events", ignore_result=True)
def relay_events() -> None:
    """Give the event bus what its outbox has; only where RAVI["EVENT_BUS"] is set."""
    from ravi_django.runtime.bus.relay import relay_safely

    relay_safely()


@shared_task(name="ravi.tell_saves", ignore_result=True)
def tell_saves(source_id: str) -> None:
    """Tell a source's agent of the saves of a model that it has waiting."""
    from ravi_django.runtime.model_sources import run

    run(source_id)


@shared_task(name="ravi.poll_sources", ignore_result=True)
def poll_sources() -> None:
    """Read the feeds, directories and adapters that are due."""
    from ravi_django.runtime import sources

    sources.poll_due()


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
    from ravi_django.runtime import background, worker

    background.stop()
    if worker._worker is not None:
        worker._worker.stop_claiming()


@worker_shutdown.connect
@worker_process_shutdown.connect
def _drain(**kwargs: Any) -> None:
    from ravi_django.runtime.worker import close_worker

    log.info("draining for up to %g s", conf.DRAIN_S, extra={"action": "worker.drain"})
    close_worker()
