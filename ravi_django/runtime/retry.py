"""Retrying a failed or blocked run, for every surface."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import Run, Status
from ravi_django.runtime import dispatch, publish
from ravi_django.runtime.store import retry as retry_rows

log = logging.getLogger("ravi.retry")


def retry(run_id: UUID | str, *, send: Any = None) -> Run:
    """Let a failed or blocked run go on from its journal: what failed it is made anew, what is recorded is not.

    Inside the caller's transaction; a worker is told after the commit. `deadline_s` of a budget counts from the run's
    first start on, unless that has passed: then from now. Returns the run, pending or queued. Raises
    IllegalTransitionError, with words, where the run's state forbids it.
    """
    run = retry_rows.retry(run_id)
    transaction.on_commit(lambda: _publish(run), robust=True)  # first, so that it comes before what the worker says
    if run.status == Status.PENDING:
        dispatch.on_commit(run.id, send)
    return run


def _publish(run: Run) -> None:
    try:
        publish.publish_retried(run)
    except Exception as error:  # the next lease's frames show it as well
        log.warning("run %s: its retry is not published: %s", run.id, error, extra={"action": "publish.failed"})
