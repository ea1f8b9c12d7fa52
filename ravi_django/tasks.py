"""Celery's part: messages that carry a run id and nothing else, and the beat's sweep.

All tasks go to the queue RAVI["QUEUE"]. Threads-pool workers that consume it have an engine. Other workers of the site
never receive a task of this app, and nothing of theirs changes.
"""

from __future__ import annotations

import gc
import logging
import threading
from functools import partial
from typing import Any

from celery import Task
from celery import shared_task as celery_task
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import celeryd_after_setup, celeryd_init, worker_ready, worker_shutdown, worker_shutting_down
from django.db import DatabaseError, connections

from ravi_django.conf import conf, worker_line

log = logging.getLogger("ravi.tasks")

# Of a worker process: whether it consumes the queue, with a pool of threads. None: this is no Celery worker.
_serves: bool | None = None


class QueuedTask(Task):  # type: ignore[misc, type-arg]  # Celery has no types
    """A task of the app's own queue; RAVI["QUEUE"] goes before the site's task_routes."""

    @property
    def queue(self) -> str:
        return _listed(self.app.amqp.queues)


def _listed(queues: Any) -> str:
    """Our queue's name. A site with task_create_missing_queues = False need not list the queue itself."""
    name = str(conf.QUEUE)
    if name not in queues:
        queues.add(queues.new_missing(name))
    return name


shared_task = partial(celery_task, base=QueuedTask, ignore_result=True)


@shared_task(name="ravi.run")
def run(run_id: str) -> None:
    """Give the run to this process's event loop, which leases it; the task is over then."""
    from ravi_django.runtime.engine.worker import get_worker

    get_worker().hint(run_id)


@shared_task(name="ravi.sweep")
def sweep() -> None:
    """Find what no hint has reached. Put it in CELERY_BEAT_SCHEDULE every RAVI["SWEEP_S"] seconds."""
    from ravi_django.runtime.engine.sweep import sweep

    sweep()


@shared_task(name="ravi.look")
def look() -> None:
    """Drive whatever can be claimed: one hint that stands for many runs."""
    from ravi_django.runtime.engine.worker import get_worker

    get_worker().look()


@shared_task(name="ravi.fan_out")
def fan_out(publication_id: str) -> None:
    """Deliver what was published to those who follow."""
    from ravi_django.runtime.social import fan_out

    fan_out.run(publication_id)


@shared_task(name="ravi.mail_request")
def mail_request(request_id: str) -> None:
    """Write to the people who may answer a request; only where RAVI["REQUEST_EMAIL"] says so."""
    from ravi_django.runtime.people.mail import send

    send(request_id)


@shared_task(name="ravi.relay_events")
def relay_events() -> None:
    """Give the event bus what its outbox has; only where RAVI["EVENT_BUS"] is set."""
    from ravi_django.runtime.events.relay import relay_safely

    relay_safely()


@shared_task(name="ravi.tell_saves")
def tell_saves(source_id: str) -> None:
    """Tell a source's agent of the saves of a model that it has waiting."""
    from ravi_django.runtime.sources.saves import run

    run(source_id)


@shared_task(name="ravi.poll_sources")
def poll_sources() -> None:
    """Read the feeds, directories and adapters that are due."""
    from ravi_django.runtime.sources import poll

    poll.poll_due()


@celeryd_init.connect
def _list_queue(instance: Any, options: Any, **kwargs: Any) -> None:
    """Before a worker looks for the queues of its option -Q."""
    if conf.QUEUE in (options.get("queues") or ()):
        _listed(instance.app.amqp.queues)


@celeryd_after_setup.connect
def _choose(instance: Any, **kwargs: Any) -> None:
    """Before a worker consumes: whether it is one of ours. Another one never consumes the queue. With Celery before 5.7
    it would, once it has sent a task there and has lost its connection."""
    global _serves
    queues = instance.app.amqp.queues
    consumes = conf.QUEUE in queues.consume_from
    _serves = consumes and issubclass(instance.pool_cls, ThreadPool)
    if not _serves:
        queues.deselect(conf.QUEUE)
    if consumes and not _serves:
        pool = instance.pool_cls.__module__.rpartition(".")[2]
        words = "the %s pool cannot run agents: this worker does not consume the queue %s; start another one: %s"
        log.error(words, pool, conf.QUEUE, worker_line(), extra={"action": "tasks.wrong_pool"})


@worker_ready.connect
def _warm(**kwargs: Any) -> None:
    """The engine is made at once, so that the first run finds it ready and health can see it."""
    if _serves:
        threading.Thread(target=_start, name="ravi-start", daemon=True).start()


def _start() -> None:
    """Import the model library, when an agent needs it, before the first run does; then look for work."""
    from ravi_django.capabilities.llm import warm
    from ravi_django.runtime.catalog.specs import uses_litellm
    from ravi_django.runtime.engine.worker import get_worker

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
    from ravi_django.runtime.engine import worker
    from ravi_django.runtime.runs import background

    background.stop()
    if worker._worker is not None:
        worker._worker.stop_claiming()


@worker_shutdown.connect
def _drain(**kwargs: Any) -> None:
    from ravi_django.runtime.engine.worker import close_worker

    if _serves:
        log.info("draining for up to %g s", conf.DRAIN_S, extra={"action": "worker.drain"})
        close_worker()
