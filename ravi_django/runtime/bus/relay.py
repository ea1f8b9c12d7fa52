"""From the outbox to the bus, in the outbox's order. One relay at a time; one that dies in the middle is repeated."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from ravi_django.db import connection, transaction
from ravi_django.kernel import Event
from ravi_django.models import OutboxEvent
from ravi_django.runtime.bus import courier
from ravi_django.runtime.bus.site import get_bus
from ravi_django.runtime.store import outbox, outbox_rows

log = logging.getLogger("ravi.bus")

BATCH = 500  # events of one transaction
BATCH_BYTES = 4 * 1024 * 1024  # and their bodies, but always one event
REST_S = 5.0  # after a failure: each try could cost a connection's timeout

_one_here = threading.Lock()
_rests_until = 0.0


def relay() -> int:
    """Give the bus what the outbox has, and delete that; returns how many. What the bus had, and was not deleted, it
    is given again. An event that the bus refuses stays for later, alone. Where another relay is at work it is left to
    that one, and in memory what a reader has no room for until it has.

    Raises what the bus and the database raise; what has not gone out is in the outbox then.
    """
    sent = 0
    while (batch := _batch()) is not None:
        sent += batch.sent
        if batch.error is not None:
            raise batch.error
        # Whoever came while we were at it has left it to us: so there is a look after the lock is gone.
        if batch.is_held_up or (batch.read < BATCH and outbox_rows.is_empty()):
            break
    return sent


def relay_safely() -> None:
    """`relay`, with a rest after a failure."""
    global _rests_until
    if time.monotonic() < _rests_until:
        return
    try:
        relay()
    except Exception as error:
        _rests_until = time.monotonic() + REST_S
        log.warning("the outbox waits: %s", error, extra={"action": "bus.relay_failed"})


def sweep() -> None:
    """What no hint has reached."""
    if outbox.is_on() and not outbox_rows.is_empty():
        courier.hint()


@dataclass(frozen=True, slots=True)
class _Batch:
    read: int = 0
    sent: int = 0
    is_held_up: bool = False
    error: Exception | None = None  # of the server: after the commit, for what has gone out has


def _batch() -> _Batch | None:
    """What came of the next rows; None when another relay is at work."""
    with _alone() as is_alone:
        if not is_alone:
            return None
        rows = outbox_rows.waiting(BATCH, BATCH_BYTES)
        if not rows:
            return _Batch()
        found = [(row, _event(row)) for row in rows]
        given = [(row, event) for row, event in found if event is not None]
        came = get_bus().relay([(row.topic, event) for row, event in given])
        kept = {given[place][0].pk for place in {*came.refused, *came.left}}
        gone = [row for row in rows if row.pk not in kept]
        outbox_rows.forget(gone)
        for place, why in came.refused.items():
            row, event = given[place]
            log.error(
                "the bus refuses event %s (%s): %s", event.id, row.topic, why, extra={"action": "bus.event_refused"}
            )
            outbox_rows.refuse(row, why)
        return _Batch(len(rows), len(gone), bool(came.left), came.error)


@contextmanager
def _alone() -> Iterator[bool]:
    """Two relays at once would mix up the order."""
    if connection.vendor == "postgresql":
        with transaction.atomic():
            yield outbox_rows.alone()
    else:  # a transaction would keep SQLite's only writer waiting for the bus: doubles are the lesser evil
        is_alone = _one_here.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                _one_here.release()


def _event(row: OutboxEvent) -> Event | None:
    try:
        return Event.model_validate({**row.body, "ts": row.created_at})
    except (ValidationError, TypeError) as error:  # nobody can read it, and all that is behind it would wait
        log.error("row %s of the outbox is no event: %s", row.pk, error, extra={"action": "bus.no_event"})
        return None


def _after_fork() -> None:
    global _one_here, _rests_until
    _one_here, _rests_until = threading.Lock(), 0.0


os.register_at_fork(after_in_child=_after_fork)
