"""The queue that the app's tasks go to, and the connection that they go by."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.app.amqp import Queues
from celery.concurrency.thread import TaskPool
from celery.signals import celeryd_after_setup, celeryd_init

from project.celery import app
from ravi_django import tasks
from ravi_django.conf import conf
from tests.support import world
from tests.support.patience import seconds


def forget_options() -> None:
    """Celery reads a task's options, its queue among them, once a process: an earlier test may have sent it."""
    for task in (tasks.sweep, tasks.OF_WINGS["ravi.poll_sources"], tasks.OF_WINGS["ravi.relay_events"]):
        task._exec_options = None


@pytest.fixture
def site_conf() -> Iterator[Any]:
    forget_options()
    routes = app.conf.task_routes
    yield app.conf
    forget_options()
    for pool in world.dispatch_pools.values():
        pool.connections.force_close_all()
    world.dispatch_pools.clear()
    app.conf.task_routes = routes
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()


@pytest.mark.parametrize("task", [tasks.sweep, tasks.OF_WINGS["ravi.relay_events"]])
def test_tasks_go_to_the_queue_of_the_settings_whatever_the_site_routes(
    settings: Any, site_conf: Any, task: Any
) -> None:
    name = f"queue-{uuid4()}"
    settings.RAVI = {**settings.RAVI, "QUEUE": name}
    site_conf.task_routes = {"*": {"queue": "other", "routing_key": "other.key"}}
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()

    world.dispatch_publish(task.name)
    with app.connection_for_write() as connection:
        task.apply_async(producer=app.amqp.Producer(connection))  # as beat does

    with app.connection_for_read() as connection, connection.SimpleQueue(name) as queue:
        found = [queue.get(timeout=seconds(10)).headers["task"] for _ in range(2)]
        queue.queue.delete()
    assert found == [task.name] * 2


def test_the_producer_gives_up_soon_and_leaves_the_options_of_the_site_alone(site_conf: Any) -> None:
    site_conf.broker_transport_options = {"global_keyprefix": "shop-", "max_retries": 50}
    pool = app.amqp._producer_pool

    own = world.broker_connection().transport_options

    assert (own["global_keyprefix"], own["max_retries"]) == ("shop-", 1)
    assert site_conf.broker_transport_options == {"global_keyprefix": "shop-", "max_retries": 50}
    assert app.connection_for_write().transport_options == site_conf.broker_transport_options
    assert app.amqp._producer_pool is pool
    site_conf.broker_write_url = ["redis://one.example:6379/0", "redis://two.example:6379/0"]
    own = world.broker_connection().transport_options
    assert (own["socket_connect_timeout"], own["socket_timeout"]) == (world.CONNECT_S, world.DISPATCH_ANSWER_S)


def test_a_site_that_lists_its_queues_need_not_list_ours(
    settings: Any, site_conf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With task_create_missing_queues = False Celery knows no other queues than those that the site lists."""
    settings.RAVI = {**settings.RAVI, "QUEUE": f"queue-{uuid4()}"}
    monkeypatch.setattr(app.amqp.queues, "create_missing", False)

    world.dispatch_publish(tasks.OF_WINGS["ravi.poll_sources"].name)

    with app.connection_for_read() as connection, connection.SimpleQueue(conf.QUEUE) as queue:
        assert queue.get(timeout=seconds(10)).headers["task"] == tasks.OF_WINGS["ravi.poll_sources"].name
        queue.queue.delete()


@pytest.mark.parametrize("named", [True, False])
def test_a_worker_consumes_our_queue_by_its_name_where_the_site_lists_its_queues(named: bool) -> None:
    queues = Queues(create_missing=False)
    worker = SimpleNamespace(app=SimpleNamespace(amqp=SimpleNamespace(queues=queues)))
    options = {"queues": [conf.QUEUE, "emails"] if named else None}

    celeryd_init.send(sender="worker", instance=worker, conf=app.conf, options=options)

    assert list(queues) == ([conf.QUEUE] if named else [])


class OldQueues(Queues):
    """Of Celery before 5.7: without -Q a worker that connects again consumes all queues that it has sent tasks to."""

    @property
    def consume_from(self) -> Any:
        return self if self._consume_from is None else self._consume_from

    def deselect(self, exclude: Any) -> None:
        self.select([name for name in self if name != exclude])


@pytest.mark.parametrize("kind", [Queues, OldQueues])
def test_a_threads_worker_of_other_queues_never_consumes_ours(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    world.patch(monkeypatch, "tasks_serves", None)
    queues = kind()
    queues.select_add("celery")
    worker = SimpleNamespace(app=SimpleNamespace(amqp=SimpleNamespace(queues=queues)), pool_cls=TaskPool)

    celeryd_after_setup.send(sender="worker", instance=worker, conf=app.conf)
    queues[conf.QUEUE]  # a task of the site submits a run

    assert list(queues.consume_from) == ["celery"]
