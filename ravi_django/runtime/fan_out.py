"""Delivering what was published: batch after batch, each committed, until every follower has it. A hint begins it; what
hints have lost the sweep finds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from ravi_django import access
from ravi_django.conf import conf
from ravi_django.runtime import background, dispatch
from ravi_django.runtime.store import digests, fan_out, processes

log = logging.getLogger("ravi.fan_out")

BATCHES = 8  # of one task: then others' work gets its turn
FEW = 10  # runs that are hinted one by one
LOOKS = 16  # hints of many runs, at least


def hint(publication_id: UUID | str) -> None:
    """Have it delivered. Never raises."""
    background.hint("ravi.fan_out", str(publication_id))


def run(publication_id: UUID | str) -> None:
    """Deliver the publications of that one's topic, the oldest first, and what has become due by that; for a bounded
    time: what is left is hinted anew."""
    at_once = False
    for _ in range(BATCHES):
        batch = fan_out.deliver_batch(publication_id, int(conf.FAN_OUT_BATCH), access.delivery_rights())
        if batch is None:
            break
        wake(batch.woken)
        at_once = at_once or batch.at_once
    else:
        hint(publication_id)
    if at_once:
        deliver_due()


def deliver_due() -> None:
    """Give followers what has become due, for a bounded time."""
    for _ in range(BATCHES):
        batch = digests.deliver_due(int(conf.FAN_OUT_BATCH), access.delivery_rights())
        if batch is None:
            return
        wake(batch.woken)
        if not batch.looked_at:
            return


def sweep() -> None:
    """Go on with what nobody is at: publications that were not delivered to all in time, and what has become due.
    Bounded; where there is more, hints go out as well."""
    left = fan_out.unfinished(BATCHES, older_than_s=conf.SWEEP_S)
    for publication_id in left:
        try:
            batch = fan_out.deliver_batch(publication_id, int(conf.FAN_OUT_BATCH), access.delivery_rights())
        except Exception:  # of the site's policy: the other topics are not to wait for it
            log.exception("publication %s: not delivered", publication_id, extra={"action": "fan_out.failed"})
            continue
        if batch is not None:
            wake(batch.woken)
            if fan_out.has_next(publication_id):
                hint(publication_id)
    if digests.has_due():
        deliver_due()


def wake(run_ids: Sequence[UUID]) -> None:
    """Set workers going on runs that can be claimed. Of many, each is not hinted by itself: a worker that looks takes
    one after the other until there are no more, or it is full."""
    if len(run_ids) <= FEW:
        dispatch.send_many(run_ids)
        return
    for _ in range(min(len(run_ids), max(LOOKS, 2 * processes.count_workers()))):
        background.hint("ravi.look")
