"""A process of the laboratory's site without an engine: what a web process does to runs, asked for over stdin.

An object a line comes in, `{"do": name, …arguments}`; one goes out, `{"result": …}` or
`{"error": words, "again": …}`. "again" is true for an error of the database: the caller repeats the request.
Everything is safe to repeat: the process can be killed at any point, and then the next one is asked the same.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any
from uuid import UUID

from django.db import Error, connections

from tests.support import world

NUMBERING = ("seq", "type", "run", "parent", "depth", "from_seq", "from", "to")


def submit(
    run_id: str,
    agent: str,
    text: str,
    budget: dict[str, Any] | None,
    hinted: bool = True,
    session: str | None = None,
) -> None:
    """Start a run. Without a hint it is the sweep that finds it."""
    from tests.support.world import submit_once

    send = None if hinted else lambda _: None
    submit_once(agent, text, budget=budget, run_id=UUID(run_id), session=session, send=send)


def signal(run_id: str, name: str, key: str) -> None:
    import ravi_django

    ravi_django.signal(run_id, name, key=key)


def answer(request: str, outcome: str, result: str | None = None, caller: bool = False) -> None:
    """Say what became of an uncertain effect. Said already, by one who died of it, is said. `caller`: as in `say`."""
    from django.db import transaction

    from ravi_django.kernel import ConflictError
    from ravi_django.models import HumanRequest

    try:
        with transaction.atomic() if caller else nullcontext():
            world.human_resolve(request, outcome, result=result)
    except ConflictError:
        if HumanRequest.objects.get(id=request).status == HumanRequest.Status.PENDING:
            raise


def say(request: str, caller: bool = False) -> None:
    """Answer as its wish is, as somebody who may; `caller`: inside a transaction of the site's own."""
    from django.contrib.auth.models import User
    from django.db import transaction

    from ravi_django.kernel import ConflictError
    from ravi_django.models import HumanRequest
    from tests.acceptance.crash.wishes import answer_to

    row = HumanRequest.objects.get(id=request)
    answer = answer_to(row)
    assert answer is not None, row.arguments
    user = User.objects.filter(groups__name=row.to.partition(":")[2]).order_by("id").first()
    try:
        with transaction.atomic() if caller else nullcontext():
            world.answer(row.id, **answer, by=user)
    except ConflictError:  # said already, by one who died of it
        if HumanRequest.objects.get(id=request).status == HumanRequest.Status.PENDING:
            raise


def frames(tree: str) -> list[dict[str, Any]]:
    """A tree's whole stream as somebody gets it who asks for it now: of each frame, what numbers it."""
    found: list[dict[str, Any]] = []
    done = False
    while not done:
        page, done = world.events_page(tree, found[-1]["seq"] if found else 0)
        if not page:
            break
        found += [{key: frame[key] for key in NUMBERING if key in frame} for frame in page]
    return found


DO = {function.__name__: function for function in (submit, signal, answer, say, frames)}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": DO[asked.pop("do")](**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "again": isinstance(error, Error)}
        finally:
            connections.close_all()  # as after a request: a restarted database is met with a new connection
        print(json.dumps(answer), flush=True)
