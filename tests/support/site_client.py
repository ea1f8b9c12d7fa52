"""A process of the site without any engine: what a web process does to runs, asked for over stdin.

One JSON object a line comes in, `{"do": name, …arguments}`; one goes out, `{"result": …}` or `{"error": words}`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django


def submit(text: str, agent: str, hint: str | None = None, **options: Any) -> dict[str, Any]:
    """Start a run. The hint goes to the queue `hint`, nowhere when that is empty, else to whichever worker comes."""
    from tests.support.world import submit_once

    send = None if hint is None else _sender(hint)
    run, _ = submit_once(agent, text, send=send, **options)
    return {"id": str(run.id)}


def deliver(run_id: str, queues: list[str], task_id: str) -> None:
    """The same message, once into each of the queues."""
    for queue in queues:
        _sender(queue)(run_id, task_id=task_id)


def send_task(name: str, args: list[Any], queue: str, task_id: str) -> None:
    """Any task that the site's workers know."""
    from celery import current_app

    current_app.send_task(name, args=args, queue=queue, task_id=task_id, retry=False)


def events(tree: str, after: int = 0) -> list[dict[str, Any]]:
    from tests.support.world import events_page

    found, _ = events_page(tree, after)
    return found


def _sender(queue: str) -> Any:
    from ravi_django.tasks import run

    def send(run_id: Any, task_id: str | None = None) -> None:
        if queue:
            run.apply_async(args=[str(run_id)], queue=queue, task_id=task_id, retry=False)

    return send


DO = {function.__name__: function for function in (submit, deliver, send_task, events)}


def main() -> None:
    django.setup()
    from django.db import connections

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": DO[asked.pop("do")](**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            connections.close_all()  # as after a request: a restarted database is met with a new connection
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
