"""The queue of the app: its tasks go there, and only workers that can run agents consume it."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

_TASKS = "ravi_django/tasks.py"
_QUEUE = (UNIT + "test_queue_of_tasks.py",)
_WORKERS = ("tests/acceptance/processes/test_worker_queues.py",)

OWN_QUEUE = [
    Mutant(
        "queue: tasks go to that of the settings",
        _TASKS,
        "name = str(conf.QUEUE)",
        'name = "ravi"',
        _QUEUE,
    ),
    Mutant(
        "queue: a dead broker is soon given up",
        RUNTIME + "dispatch.py",
        '{"max_retries": 1, "interval_start": 0, "interval_step": 0}',
        "{}",
        _QUEUE,
    ),
    Mutant(
        "queue: a worker with another pool leaves it",
        _TASKS,
        "        queues.deselect(conf.QUEUE)\n",
        "        pass\n",
        _WORKERS,
    ),
    Mutant(
        "queue: a worker without it starts no engine",
        _TASKS,
        "    _serves = consumes and issubclass(instance.pool_cls, ThreadPool)\n",
        "    _serves = issubclass(instance.pool_cls, ThreadPool)\n",
        _WORKERS,
    ),
    Mutant(
        "engine: without a broker it is inline",
        "ravi_django/conf.py",
        'return "celery" if broker_url() else "inline"',
        'return "celery"',
        ("tests/unit/project/test_celery_checks.py",),
    ),
    Mutant(
        "models: no key is no outage",
        "ravi_django/capabilities/llm/litellm_model.py",
        "missing_key(error, self.name, self.missing_variables()) or ",
        "",
        ("tests/unit/capabilities/llm/test_litellm_errors.py",),
    ),
]
