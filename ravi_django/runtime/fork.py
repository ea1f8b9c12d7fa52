"""Forking a run, for every surface."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from ravi_django.db import transaction
from ravi_django.kernel.canonical import digest_of
from ravi_django.kernel.checks import check_whole
from ravi_django.models import Run
from ravi_django.runtime import board, dispatch, publish
from ravi_django.runtime.store import fork as fork_rows
from ravi_django.runtime.submit import first_of, scope_of

log = logging.getLogger("ravi.fork")


def fork(run_id: UUID | str, after_seq: int, *, send: Any = None) -> Run:
    """A new run in a new session that shares a run's past up to a journal entry, and goes its own way from there.

    The past ends at the nearest place at or before `after_seq` where no effect was open. Inside the caller's
    transaction; a worker is told after the commit. Raises InvalidInputError for an `after_seq` that is no entry of the
    run's journal, ConflictError when that was pruned or the run's owner deleted.
    """
    return fork_once(run_id, after_seq, send=send)[0]


def fork_once(
    run_id: UUID | str, after_seq: int, *, user: Any = None, idempotency_key: str | None = None, send: Any = None
) -> tuple[Run, bool]:
    """`fork`, also saying whether the run is new: with an `idempotency_key`, scoped to (user, source), a repeat returns
    the first fork. Raises IdempotencyMismatchError when that has another `after_seq`."""
    check_whole("after_seq", after_seq)
    asked = Run(request_digest=digest_of({"after_seq": after_seq}))
    if idempotency_key is not None:
        asked.idempotency_scope = scope_of(user, f"fork:{run_id}", idempotency_key)
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).get(id=run_id)  # two forks with one key come one after the other
        if (first := first_of(asked)) is not None:
            return first, False
        run = fork_rows.fork(run_id, after_seq, asked.idempotency_scope, asked.request_digest)
        board.copy_past(Run.objects.select_related("session").get(id=run_id), run)
    transaction.on_commit(lambda: _publish(run), robust=True)  # first, so that it comes before what the worker says
    dispatch.on_commit(run.id, send)
    return run, True


def _publish(run: Run) -> None:
    try:
        publish.publish_past(run)
    except Exception as error:  # its stream then begins with the next thing that it does
        log.warning("run %s: its past is not published: %s", run.id, error, extra={"action": "publish.failed"})
