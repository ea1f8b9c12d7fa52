"""The end of a run, for code that waits for it: `run.wait()` and `run.result()`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import Q
from pydantic_core import to_json

from ravi_django.agents.react.result import ResultRejected, ResultType
from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.kernel import InvalidInputError, ResultInvalidError, RunFailedError
from ravi_django.kernel.checks import check_span
from ravi_django.kernel.json_values import check_json
from ravi_django.models import HumanRequest, Run, Status
from ravi_django.runs.catalog import specs

MAX_SCHEMA = 64 * 1024  # bytes
LOOK_S = (0.1, 1.0)  # between two looks at the row: at first, and later


def wait(run: Run, timeout: float | timedelta | None = None, *, look: Callable[[Run], None] = lambda run: None) -> Run:
    """Read the row until the run has ended or is blocked. Raises TimeoutError after `timeout` seconds, and RuntimeError
    inside a transaction, which would not see the end, on an event loop, which would stand still, and where nothing runs
    meanwhile. `look` is called with each row of a run that has not ended."""
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


def result(run: Run, result_type: Any = None, timeout: float | timedelta | None = None) -> Any:
    """`wait`, then `value_of`."""
    check_type(result_type)
    wait(run, timeout)
    return value_of(run, result_type)


def check_type(kind: Any) -> None:
    if isinstance(kind, int | float | timedelta):
        raise InvalidInputError(f"result_type is a type, not {kind!r}; pass timeout={kind!r}", field="result_type")


def value_of(run: Run, result_type: Any = None) -> Any:
    """The output of a run that has ended: a text, or an instance of its type. Raises RunFailedError when it failed, was
    cancelled or is blocked, and ResultInvalidError for an output that is not of the type."""
    text = output_of(run.status, run.output, run.error)
    kind = specs.result_type_of(run) if result_type is None else typed(result_type)
    try:
        return text if kind is None else kind.load(text)
    except ResultRejected as error:
        raise ResultInvalidError(
            f"the output of run {run.id} is not a valid {kind and kind.name}: {error}; read run.output"
        ) from None


def output_of(status: str, output: str | None, error: dict[str, object] | None) -> str:
    if status == Status.COMPLETED:
        return output or ""
    message, kind = ((error or {}).get(key, status) for key in ("message", "type"))
    raise RunFailedError(str(message), type=str(kind), status=str(status))


def schema_of(wanted: ResultType | None) -> str:
    """The JSON schema of a request's `result_schema`, for its run; "" for None. Raises InvalidInputError."""
    if wanted is None:
        return ""
    text = to_json(check_json("result_schema", wanted.schema, MAX_SCHEMA)).decode()
    typed(wanted.schema)  # as a worker reads it
    return text


def typed(result_type: Any) -> ResultType:
    try:
        return result_type if isinstance(result_type, ResultType) else ResultType(result_type)
    except InvalidInputError as error:
        detail = str(error).removeprefix("result_model ")
        raise InvalidInputError(f"result_schema {detail}", field="result_schema") from error
