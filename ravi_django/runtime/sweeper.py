"""The sweep: finds work whose hint was lost, and leases whose worker died. One at a time, in bounded batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction

from ravi_django.conf import conf
from ravi_django.runtime import dispatch, publish, store

log = logging.getLogger("ravi.sweep")

BATCH = 500
_LOCK = 0x72617669  # "ravi"


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did; `ran` is false when another was at it."""

    ran: bool = True
    hinted: int = 0
    promoted: int = 0
    published: int = 0


def sweep(send: Callable[[list[UUID]], Sequence[UUID] | None] = dispatch.send_many) -> Swept:
    """Find what to hint in one short transaction under an advisory lock, then hint outside of it.

    `send` returns the runs that it could not hint.
    """
    with transaction.atomic():
        if not _alone():
            return Swept(ran=False)
        for run_id in store.silent(BATCH, older_than_s=conf.SWEEP_S):
            store.wake_silent(run_id)
        due = store.due_for_hint(BATCH)
        promoted = store.promote_orphans(BATCH)
    failed = send([*due, *promoted])
    if failed:
        store.hint_failed(failed)
    published = sum(_publish(tree) for tree in store.unpublished(50, older_than_s=2 * conf.SWEEP_S))
    store.forget_dead_workers(older_than_s=10 * conf.HEARTBEAT_S + 60)
    store.swept()
    return Swept(hinted=len(due) + len(promoted) - len(failed or ()), promoted=len(promoted), published=published)


def _alone() -> bool:
    if connection.vendor != "postgresql":
        return True  # the write lock of the transaction is the whole database's
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _publish(tree: UUID) -> bool:
    try:
        publish.republish(str(tree))
        return True
    except Exception as error:
        log.warning("run %s: its events could not be published: %s", tree, error, extra={"action": "publish.failed"})
        return False
