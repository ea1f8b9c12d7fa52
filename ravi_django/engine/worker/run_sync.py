"""Run an agent and wait for its answer: for scripts, shells, management commands and tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils.module_loading import import_string

from ravi_django.conf import conf
from ravi_django.engine.worker.worker import get_worker, has_worker
from ravi_django.kernel import Agent, AgentId, Message, RunWaitsError
from ravi_django.kernel.checks import check_span
from ravi_django.models import Run
from ravi_django.runs import results, workers
from ravi_django.runs.lifecycle.submit import submit


def run_sync(
    agent: Agent | AgentId | str,
    input: str | list[Any] | Message,
    *,
    user: Any = None,
    timeout: float | timedelta | None = None,
    **options: Any,
) -> Any:
    """Run `agent` on `input` and return its output, as `run.result()`. `options` are those of `submit`.

    This process executes the run if RAVI["ENGINE"] is "inline" or "manual" or no worker is alive. Otherwise the workers
    do.

    Raises RunFailedError if the run failed, was cancelled or is blocked, and RunWaitsError if it asks a person: answer
    the request, then call `run.result()`. Raises TimeoutError after `timeout` seconds, without stopping the run.
    Raises RuntimeError inside a transaction and on an event loop, and the errors of `submit`.
    """
    if timeout is not None:
        check_span("timeout", timeout)
    results.refuse_to_wait("run_sync()", "await asyncio.to_thread(run_sync, …)")
    if conf.ENGINE == "manual":
        run = submit(agent, input, user=user, **options)
        import_string("ravi_django.testing.run_until_idle")(timeout=timeout)
    else:
        is_here = has_worker() or conf.ENGINE == "inline" or not workers.alive().exists()
        if is_here and not has_worker():
            worker = get_worker()
            if conf.ENGINE != "inline":  # there it looks and sweeps already
                worker.keep_looking(sweeping=True)
        run = submit(agent, input, user=user, **options)
        if is_here:
            get_worker().hint(run.id)
    results.wait(run, timeout, look=_refuse_request)
    return results.value_of(run)


def _refuse_request(run: Run) -> None:
    """Raise RunWaitsError if the run, or one below it, waits for a person."""
    if (request := results.request_of(run)) is not None:
        raise RunWaitsError(
            f"run {run.id} waits for a person: {request.kind} {request.id} ({request.text or request.tool}); "
            "call ravi_django.answer with that id, then run.result()",
            run=run.id,
            request=request.id,
        )
