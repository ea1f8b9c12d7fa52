"""The end of a run, for code that waits for it: `run.wait()` and `run.result()`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import timedelta

from django.db.models import Q

from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.kernel import RunFailedError
from ravi_django.kernel.checks import check_span
from ravi_django.models import HumanRequest, Run, Status

LOOK_S = (0.1, 1.0)  # between two looks at the row: at first, and later


def wait(run: Run, timeout: float | timedelta | None = None, *, look: Callable[[Run], None] = lambda run: None) -> Run:
    """Read the row until the run has ended or is blocked. Raises TimeoutError after `timeout` seconds, and RuntimeError
    inside a transaction, which would not see the end, on an event loop, which would stand still, and where nothing runs
    meanwhile. `look` is called with each row of a run that goes on."""
    refuse_to_wait("run.wait()", "await asyncio.to_thread(run.wait)")
    limit = None if timeout is None else check_span("timeout", timeout)
    give_up = math.inf if limit is None else time.monotonic() + limit
    pause, most = LOOK_S
    while True:
        run.refresh_from_db()
        if run.is_terminal or run.status == Status.BLOCKED:
            return run
        look(run)
        if conf.ENGINE == "manual":
            fix = "call ravi_django.testing.run_until_idle()"
            if run.waits_for:
                fix = f"it waits for {_waited_for(run)}: let that happen, then {fix}"
            raise RuntimeError(f"run {run.id} is {run.status}, and RAVI['ENGINE'] is 'manual': {fix}")
        if time.monotonic() >= give_up:
            raise TimeoutError(f"run {run.id} is {run.status} after {limit:g} s")
        time.sleep(min(pause, max(0.0, give_up - time.monotonic())))
        pause = min(most, 1.5 * pause)


def request_of(run: Run) -> HumanRequest | None:
    """The first pending request of the run, or of one below it."""
    tree = HumanRequest.objects.filter(Q(run=run) | Q(run__root=run), status=HumanRequest.Status.PENDING)
    return tree.order_by("id").first()


def _waited_for(run: Run) -> str:
    if (request := request_of(run)) is not None:
        return f"a person, {request.kind} {request.id} ({request.text or request.tool})"
    return " ".join(str(value) for value in (run.waits_for or {}).values() if value)


def refuse_to_wait(name: str, instead: str) -> None:
    """Raise RuntimeError where a call `name` would wait for ever; `instead` does the same on an event loop."""
    if connection.in_atomic_block:
        fix = "wait behind it, or in a test use TransactionTestCase"
        raise RuntimeError(f"{name} is inside a transaction, and a run starts after the commit: {fix}")
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{name} would block the event loop: {instead}")


def result(run: Run, timeout: float | timedelta | None = None) -> str:
    """`wait`, then the run's output. Raises RunFailedError when it failed, was cancelled or is blocked."""
    wait(run, timeout)
    return output_of(run.status, run.output, run.error)


def output_of(status: str, output: str | None, error: dict[str, object] | None) -> str:
    if status == Status.COMPLETED:
        return output or ""
    message, kind = ((error or {}).get(key, status) for key in ("message", "type"))
    raise RunFailedError(str(message), type=str(kind), status=str(status))
