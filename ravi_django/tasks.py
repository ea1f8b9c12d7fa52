"""Celery tasks: hints that carry only an id, and the sweep of beat.

All tasks go to the queue RAVI["QUEUE"]. Workers with a threads pool that consume it have an engine. Other workers of
the site receive no task of this app.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Task, shared_task as celery_task
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import celeryd_after_setup, celeryd_init, worker_ready, worker_shutdown, worker_shutting_down
from django.db import DatabaseError, connections

from ravi_django import wing
from ravi_django.conf import conf, worker_line

log = logging.getLogger("ravi.tasks")

# Whether this worker consumes the queue with a pool of threads. None: this process is no Celery worker.
_serves: bool | None = None


class QueuedTask(Task):  # type: ignore[misc, type-arg]  # Celery has no types
    """A task of the queue RAVI["QUEUE"], which overrides the site's task_routes."""

    Strategy = "ravi_django.tasks:strategy"

    @property
    def queue(self) -> str:
        return _listed(self.app.amqp.queues)


def _listed(queues: Any) -> str:
    """The queue's name. Adds the queue for sites with task_create_missing_queues = False."""
    name = str(conf.QUEUE)
    if name not in queues:
        queues.add(queues.new_missing(name))
    return name


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """How a worker takes the messages of a task. A hint goes to the engine at once: a thread of the pool and Celery's
    bookkeeping would cost as much as half of a short run."""
    from celery.worker.strategy import default

    through_pool = default(task, app, consumer, **options)

    def take(message: Any, body: Any, ack: Callable[..., Any], *more: Any) -> None:
        if task.name not in HINTS:
            through_pool(message, body, ack, *more)
            return
        arguments = message.payload
        try:
            task.run(*(arguments["args"] if isinstance(arguments, dict) else arguments[0]))
            log.info("Task %s[%s] succeeded", task.name, message.headers.get("id", ""))
        except Exception:
            log.exception("a hint failed; the sweep finds its run", extra={"action": "tasks.hint_failed"})
        queue = message.delivery_info.get("routing_key")
        if queue != conf.QUEUE or not app.amqp.queues[queue].no_ack:
            ack(log, consumer.connection_errors)

    return take


HINTS = ("ravi.run", "ravi.look")
shared_task = partial(celery_task, base=QueuedTask, ignore_result=True)


@shared_task(name="ravi.run")
def run(run_id: str) -> None:
    """Hint the run to this process's engine; the task does not wait for it."""
    from ravi_django.engine.worker.worker import get_worker

    get_worker().hint(run_id)


@shared_task(name="ravi.sweep")
def sweep() -> None:
    """Find work whose hint was lost. Put it in CELERY_BEAT_SCHEDULE every RAVI["SWEEP_S"] seconds."""
    from ravi_django.engine.worker.sweep import sweep

    sweep()


@shared_task(name="ravi.look")
def look() -> None:
    """Drive claimable runs: one hint for many runs."""
    from ravi_django.engine.worker.worker import get_worker

    get_worker().look()


@shared_task(name="ravi.mail_request")
def mail_request(request_id: str) -> None:
    """Send e-mails to the people who may answer a request, if RAVI["REQUEST_EMAIL"] is set."""
    from ravi_django.people.mail import send

    send(request_id)


def _of_wing(part: wing.Wing, name: str) -> Any:
    """A task that imports its wing when it is first called."""

    @shared_task(name=name)
    def task(*ids: str) -> None:
        part.load(part.tasks[name])(*ids)

    return task


OF_WINGS = {name: _of_wing(part, name) for part in wing.wings() for name in part.tasks}


@celeryd_init.connect
def _list_queue(instance: Any, options: Any, **kwargs: Any) -> None:
    """Add the queue before a worker reads its option -Q."""
    if conf.QUEUE in (options.get("queues") or ()):
        _listed(instance.app.amqp.queues)


@celeryd_after_setup.connect
def _choose(instance: Any, **kwargs: Any) -> None:
    """Decide before a worker consumes whether it serves the queue, and deselect the queue otherwise: with Celery before
    5.7 a worker that has sent a task there would consume it after a lost connection."""
    global _serves
    queues = instance.app.amqp.queues
    consumes = conf.QUEUE in queues.consume_from
    _serves = consumes and issubclass(instance.pool_cls, ThreadPool)
    # All messages are hints, which may be lost. In Redis an acknowledgement costs four times as much as its message.
    if _serves and instance.app.conf.task_default_queue != conf.QUEUE:  # else the site's own tasks come there too
        queues[conf.QUEUE].no_ack = True
    if not _serves:
        queues.deselect(conf.QUEUE)
    if consumes and not _serves:
        pool = instance.pool_cls.__module__.rpartition(".")[2]
        message = "the %s pool cannot run agents: this worker does not consume the queue %s; start another one: %s"
        log.error(message, pool, conf.QUEUE, worker_line(), extra={"action": "tasks.wrong_pool"})
        if not queues.consume_from:  # it would look healthy, and do nothing
            raise SystemExit(1)


@worker_ready.connect
def _warm(**kwargs: Any) -> None:
    """Start the engine at once, for the first run and the health check."""
    if _serves:
        threading.Thread(target=_start, name="ravi-start", daemon=True).start()


def _start() -> None:
    """Look for work, and import the model library beside it if an agent needs it: a run whose worker died waits for no
    import but its own model's."""
    from ravi_django.calls.llm import warm
    from ravi_django.engine.worker.worker import get_worker, start_line
    from ravi_django.runs.catalog.agent_models import log_errors, uses_litellm

    worker = get_worker()
    gc.collect()
    gc.freeze()  # a full collection over all imported modules would stall every run for half a second
    worker.keep_looking()
    log_errors()
    try:
        log.info("%s", start_line(worker.engine, f"queue {conf.QUEUE}"), extra={"action": "worker.start"})
        if uses_litellm():
            warm()
            gc.freeze()
    except DatabaseError:  # then the first run imports it
        pass
    finally:
        connections.close_all()  # this thread's


@worker_shutting_down.connect
def _stop_claiming(**kwargs: Any) -> None:
    from ravi_django.engine.worker import worker
    from ravi_django.runs import background_tasks

    background_tasks.stop()
    if worker._worker is not None:
        worker._worker.stop_claiming()


@worker_shutdown.connect
def _drain(**kwargs: Any) -> None:
    from ravi_django.engine.worker.worker import close_worker

    if _serves:
        log.info("draining for up to %g s", conf.DRAIN_S, extra={"action": "worker.drain"})
        close_worker()
