"""A process of the laboratory's site without an engine: what a web process does to runs, asked for over stdin.

One JSON object a line comes in, `{"do": name, …arguments}`; one goes out, `{"result": …}` or `{"error": words}`.
Everything is safe to repeat: the process can be killed at any point, and then the next one is asked the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from uuid import UUID

from django.db import connections

AGENT = "react/lab"


def submit(run_id: str, text: str, hinted: bool = True) -> None:
    """Start a run. Without a hint it is the sweep that finds it."""
    from ravi_django.runtime.submit import submit_once

    submit_once(AGENT, text, run_id=UUID(run_id), send=None if hinted else lambda _: None)


def signal(run_id: str, name: str, key: str) -> None:
    import ravi_django

    ravi_django.signal(run_id, name, key=key)


def answer(request: str, outcome: str, result: str | None = None) -> None:
    """Say what became of an uncertain effect. Said already, by one who died of it, is said."""
    from ravi_django.kernel import ConflictError
    from ravi_django.models import HumanRequest
    from ravi_django.runtime import human

    try:
        human.resolve(request, outcome, result=result)
    except ConflictError:
        if HumanRequest.objects.get(id=request).status == HumanRequest.Status.PENDING:
            raise


DO = {function.__name__: function for function in (submit, signal, answer)}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": DO[asked.pop("do")](**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            connections.close_all()  # as after a request: a restarted database is met with a new connection
        print(json.dumps(answer), flush=True)
