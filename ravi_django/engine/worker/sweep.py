"""The sweep: finds runs whose hint was lost, leases of dead workers, and all other overdue work. One sweep runs at a
time, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from ravi_django import wing
from ravi_django.calls.model import permits
from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.live.rollups import counting
from ravi_django.live.streams import republish
from ravi_django.people import escalation, mail
from ravi_django.runs import hints, sessions, signals, workers
from ravi_django.runs.files import files
from ravi_django.runs.lifecycle import erasing, prune_rows
from ravi_django.runs.workers import each as _each

BATCH = 500
_LOCK = 0x72617669  # "ravi"


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep."""

    ran: bool = True  # False if another sweep is running
    hinted: int = 0
    promoted: int = 0
    published: int = 0


def sweep(send: Callable[[list[UUID]], Sequence[UUID] | None] = hints.send_many) -> Swept:
    """Find the runs to hint in one short transaction under an advisory lock. Fix and hint outside of it, row by row:
    one bad row must not stop the others.

    `send` returns the runs that it could not hint.
    """
    with transaction.atomic():
        if not _alone():
            return Swept(ran=False)
        due = workers.due_for_hint(BATCH)
        silent = signals.silent(BATCH, older_than_s=conf.SWEEP_S)
        orphans = sessions.orphans(BATCH)
    woken = [run_id for run_id in silent if _each(signals.wake_silent, run_id) is not None]
    promoted = [run_id for orphan in orphans for run_id in _each(sessions.promote_orphan, orphan) or ()]
    for request_id in escalation.due_to_escalate(BATCH):
        _each(escalation.escalate, request_id)
    _each(lambda _: permits.recount(), "the waits for models")
    permitted = _each(lambda _: permits.grant(), "the permits of models") or []
    failed = _send(send, [*due, *promoted, *woken, *permitted])
    steps, begun = dict(wing.each("sweep")), 0
    for name in steps:
        runs = _each(lambda name: steps[name](), name) or []  # may take seconds
        begun += len(runs)
        failed += _send(send, runs) if runs else 0
    unpublished = republish.unpublished(50, older_than_s=2 * conf.SWEEP_S)
    published = sum(_each(_publish, tree) is not None for tree in unpublished)
    _each(lambda _: mail.sweep(), "the e-mails")
    _each(lambda _: counting.sweep(), "the rollups")
    _each(lambda _: erasing.sweep(), "the erasures")
    _each(lambda _: files.delete_unused(), "the files")
    _each(lambda _: prune_rows.delete_some(prune_rows.expired_tickets()), "the tickets")
    workers.forget_dead_workers(older_than_s=10 * conf.HEARTBEAT_S + 60)
    workers.swept()
    hinted = len(due) + len(promoted) + len(woken) + begun - failed
    return Swept(hinted=hinted, promoted=len(promoted), published=published)


def _send(send: Callable[[list[UUID]], Sequence[UUID] | None], runs: Sequence[UUID]) -> int:
    """Returns how many could not be hinted: the next sweep hints those."""
    failed = send(list(dict.fromkeys(runs)))
    if failed:
        workers.hint_failed(failed)
    return len(failed or ())


def _alone() -> bool:
    if connection.vendor != "postgresql":
        return True  # the transaction locks the whole database
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _publish(tree: UUID) -> bool:
    republish.republish(str(tree))
    return True
