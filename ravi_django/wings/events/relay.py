"""The bus of the site, and its relay: from the outbox to the bus, in the outbox's order, soon after a commit.

One relay at a time. When one dies in the middle, the next sends its batch again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import Q, QuerySet
from pydantic import ValidationError

from ravi_django.conf import conf
from ravi_django.db import Bytes, connection, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal import outbox
from ravi_django.kernel import Event, InputTooLargeError
from ravi_django.kernel.secrets import refuse_secrets
from ravi_django.live.streams.buffer import stream_url
from ravi_django.models import OutboxEvent
from ravi_django.runs.lifecycle.prune import delete_old
from ravi_django.wings.events.bus import EVENTS, Bus, check_topic
from ravi_django.wings.events.memory import MemoryBus
from ravi_django.wings.events.valkey import ValkeyBus

_LOCK = 0x72627573  # "rbus"


def alone() -> bool:
    """On PostgreSQL: whether no other relay works, for the rest of this transaction. Two at once would mix up the
    order. The server ends the session of a relay whose process hangs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        is_alone = bool(cursor.fetchone()[0])
        if is_alone:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '30s'")
    return is_alone


def _due() -> QuerySet[OutboxEvent]:
    """The rows to relay now. A refused one waits for its time and holds up no other."""
    return OutboxEvent.objects.filter(Q(again_at__isnull=True) | Q(again_at__lte=clock.now())).order_by("id")


def waiting(limit: int, most: int) -> list[OutboxEvent]:
    """The next rows to relay, in order: at most `limit` rows and `most` bytes of bodies, but always one row."""
    ids: list[int] = []
    total = 0
    for id, size in _due().values_list("id", Bytes("body"))[:limit]:
        total += size
        if ids and total > most:
            break
        ids.append(id)
    return list(OutboxEvent.objects.filter(id__in=ids).order_by("id"))


def forget(rows: Sequence[OutboxEvent]) -> None:
    """Delete rows that the bus has."""
    OutboxEvent.objects.filter(id__in=[row.pk for row in rows]).delete()


TRIES = 5  # after so many a row counts as refused: the operator must look at it
AGAIN_S = (5.0, 3600.0)  # until a refused row is sent again: doubling, from and to


def refuse(row: OutboxEvent, why: str) -> None:
    """Send the row again later, also after its last try: the cause may be fixed by then."""
    first, most = AGAIN_S
    pause = min(most, first * 2**row.tries) if row.tries + 1 < TRIES else most
    tries = min(row.tries + 1, 1000)
    OutboxEvent.objects.filter(id=row.pk).update(tries=tries, error=why[:1000], again_at=clock.after(pause))


def is_empty() -> bool:
    """Whether there is nothing to relay now."""
    return not _due().exists()


MANY = 100_000  # rows counted at most


def refused() -> tuple[int, str]:
    """How many events the bus has refused TRIES times, MANY at most, and the error of the first."""
    rows = OutboxEvent.objects.filter(tries__gte=TRIES)
    if (first := rows.order_by("id").values_list("topic", "error").first()) is None:
        return 0, ""
    return rows.order_by()[:MANY].count(), f"topic {first[0]!r}: {first[1]}"


def backlog() -> tuple[int, float]:
    """How many events wait, MANY at most and without the `refused` ones, and the age of the oldest in seconds."""
    return _waiting(OutboxEvent.objects.filter(tries__lt=TRIES))


def stranded() -> tuple[int, float]:
    """The same for all events: for a site that relays none."""
    return _waiting(OutboxEvent.objects.all())


def _waiting(rows: QuerySet[OutboxEvent]) -> tuple[int, float]:
    count = rows.order_by()[:MANY].count()
    oldest = rows.order_by("id").annotate(age=clock.age("created_at")).values_list("age", flat=True).first()
    return (count, max(0.0, oldest.total_seconds())) if oldest is not None else (0, 0.0)


def prune(older_than_s: float, dry_run: bool) -> int:
    if outbox.is_on():  # the events wait for a server that is away
        return 0
    return delete_old(OutboxEvent.objects.filter(created_at__lt=clock.after(-older_than_s)), dry_run)


MEMORY = "memory"

_buses: dict[tuple[int, str], Bus] = {}


def address() -> str | None:
    """The URL of the bus's server, or "memory"; None when the site has no bus. "auto" is the Redis of the streams, or
    "memory" without one."""
    setting = conf.EVENT_BUS
    return (stream_url() or MEMORY) if setting == "auto" else setting


def get_bus() -> Bus:
    """The bus of this site; one object a process. Raises ImproperlyConfigured when RAVI["EVENT_BUS"] is None."""
    where = address()
    if where is None:
        raise ImproperlyConfigured(
            'this site has no event bus: set RAVI[\'EVENT_BUS\'] to "auto", "memory" or a redis:// address'
        )
    key = (os.getpid(), where)  # after a fork the parent's connections are not ours
    if key not in _buses:
        _buses[key] = MemoryBus() if where == MEMORY else ValkeyBus(where)
    return _buses[key]


def forget_buses() -> None:
    """For tests: the next test begins without subscriptions."""
    _buses.clear()


def enqueue(event: Event, topic: str = EVENTS) -> bool:
    """Publish an event about a change, in the transaction of the change: it is rolled back with it, and on the bus
    after the commit.

    Returns False, and writes nothing, when the site has no event bus. Raises SecretRefusedError, InputTooLargeError,
    and ValueError for an invalid topic.
    """
    check_topic(topic)
    refuse_secrets(event.data, "data")
    size = len(event.model_dump_json())
    if size > conf.MAX_INPUT_BYTES:
        raise InputTooLargeError(f"the event has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="data")
    if not outbox.is_on():
        return False
    outbox.write([event], topic)
    return True


log = logging.getLogger("ravi.bus")

BATCH = 500  # events of one transaction
BATCH_BYTES = 4 * 1024 * 1024  # and their bodies, but always one event
REST_S = 5.0  # after a failure: each try could cost a connection's timeout

_one_here = threading.Lock()
_rests_until = 0.0


def relay() -> int:
    """Send the outbox's events to the bus and delete them; returns how many. Events that the bus got and that were not
    deleted are sent again. A refused event is retried later; others are sent. Does nothing while another relay works.

    Raises errors of the bus and the database; unsent events stay in the outbox.
    """
    sent = 0
    while (batch := _batch()) is not None:
        sent += batch.sent
        if batch.error is not None:
            raise batch.error
        # A relay that found us at work has left its events to us: look again after the lock is released.
        if batch.read < BATCH and is_empty():
            break
    return sent


def relay_safely() -> None:
    """`relay`, with a pause after a failure."""
    global _rests_until
    if time.monotonic() < _rests_until:
        return
    try:
        relay()
    except Exception as error:
        _rests_until = time.monotonic() + REST_S
        log.warning("the outbox waits: %s", error, extra={"action": "bus.relay_failed"})


def sweep() -> None:
    """Relay events whose hint was lost."""
    if outbox.is_on() and not is_empty():
        hint()


@dataclass(frozen=True, slots=True)
class _Batch:
    read: int = 0
    sent: int = 0
    error: Exception | None = None  # of the server; raised after the commit, which keeps the sent events


def _batch() -> _Batch | None:
    """Send the next rows; None while another relay works."""
    with _alone() as is_alone:
        if not is_alone:
            return None
        rows = waiting(BATCH, BATCH_BYTES)
        if not rows:
            return _Batch()
        sent = [(row, event) for row in rows if (event := _event(row)) is not None]
        result = get_bus().relay([(row.topic, event) for row, event in sent])
        remaining = {sent[index][0].pk for index in {*result.refused, *result.left}}
        gone = [row for row in rows if row.pk not in remaining]
        forget(gone)
        for index, why in result.refused.items():
            row, event = sent[index]
            log.error(
                "the bus refuses event %s (%s): %s", event.id, row.topic, why, extra={"action": "bus.event_refused"}
            )
            refuse(row, why)
        return _Batch(len(rows), len(gone), result.error)


@contextmanager
def _alone() -> Iterator[bool]:
    """Two relays at once would mix up the order."""
    if connection.vendor == "postgresql":
        with transaction.atomic():
            yield alone()
    else:  # a transaction would make SQLite's only writer wait for the bus; a double is less harm
        is_alone = _one_here.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                _one_here.release()


def _event(row: OutboxEvent) -> Event | None:
    try:
        return Event.model_validate({**row.body, "ts": row.created_at})
    except (ValidationError, TypeError) as error:  # unreadable for good, and all later rows would wait
        log.error("row %s of the outbox is no event: %s", row.pk, error, extra={"action": "bus.no_event"})
        return None


COALESCE_S = 0.02  # between two hints of a process: one stands for all events of a moment
IDLE_S = 1.0  # the thread ends after so long without one

_wake = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def hint() -> None:
    """Relay soon. Never raises and never waits: call it from any thread, also the event loop's."""
    global _thread
    _wake.set()
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_carry, name="ravi-courier", daemon=True)
            _thread.start()


def _carry() -> None:
    global _thread
    try:
        while True:
            if _wake.wait(IDLE_S):
                _wake.clear()
                _send()
                time.sleep(COALESCE_S)
                continue
            with _lock:
                if not _wake.is_set():
                    _thread = None
                    return
    finally:
        connections.close_all()  # this thread's


def _send() -> None:
    from ravi_django.runs import background_tasks

    try:
        where = address()
        if where == MEMORY or (where is not None and conf.ENGINE != "celery"):
            relay_safely()  # its readers may be in this process alone
        elif where is not None:
            background_tasks.hint("ravi.relay_events")
    except Exception as error:
        log.warning("the outbox waits for the sweep: %s", error, extra={"action": "bus.no_hint"})


def join(timeout: float = 10.0) -> None:
    """For tests: wait for the thread's end."""
    thread = _thread
    if thread is not None:
        thread.join(timeout)


def _after_fork() -> None:
    """The thread, and the locks that it may hold, belong to the parent."""
    global _one_here, _rests_until, _thread, _lock, _wake
    _one_here, _rests_until = threading.Lock(), 0.0
    _thread, _lock, _wake = None, threading.Lock(), threading.Event()


os.register_at_fork(after_in_child=_after_fork)
