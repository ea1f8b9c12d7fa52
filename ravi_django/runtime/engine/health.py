"""Whether runs submitted now will be driven: one check for each thing that they need.

Each check has a bounded time, on a thread and with connections of its own: a service that does not answer at all must
not hang who asks.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connections
from django.db.models import Count, DurationField, ExpressionWrapper, F, Max

from ravi_django.conf import conf, worker_line
from ravi_django.db import connection
from ravi_django.models import Erasure, SweepState, WorkerProcess
from ravi_django.runtime.db import clock
from ravi_django.runtime.events import outbox_rows
from ravi_django.runtime.runs import hints
from ravi_django.runtime.streams.buffer import get_buffer
from ravi_django.runtime.tools.threads import hanging

ANSWER_S = 1.0  # how long a service may take for its answer
LIMIT_S = 2.0  # how long all checks may take together, which run side by side
LATE_S = 60.0  # an event that waits for longer has a reason
REFUSED = "refused by the server, and tried once an hour"
LATE = "late; see to the server of RAVI['EVENT_BUS'], and to the workers and beat"
MISSED = 3  # heartbeats, or sweeps, that may be missing before it is called late
MARGIN_S = 5.0  # how long a sweep may wait in the broker's queue and take


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that runs need."""

    name: str  # database, broker, channel_layer, events, worker, sweep, erasures, event_bus
    ok: bool
    detail: str  # for an operator: what was found, or what is wrong and its fix


def check_all() -> list[Check]:
    """Every check, in a fixed order, within LIMIT_S or little more. The broker is only looked at where it is used."""
    wanted: dict[str, Callable[[], str]] = {"database": database}
    if conf.ENGINE == "celery":
        wanted["broker"] = broker
    wanted |= {"channel_layer": channel_layer, "events": events, "worker": worker, "sweep": sweep, "erasures": erasures}
    if conf.EVENT_BUS is not None:
        wanted["event_bus"] = event_bus
    begun = [_Attempt(name, look) for name, look in wanted.items()]
    give_up = time.monotonic() + LIMIT_S
    return [attempt.outcome(max(0.0, give_up - time.monotonic())) for attempt in begun]


class Unhealthy(Exception):
    """The check found its thing wanting; the message is for an operator."""


class _Attempt(threading.Thread):
    """A check under way. A daemon: one that hangs holds up neither the answer nor the end of the process."""

    def __init__(self, name: str, look: Callable[[], str]) -> None:
        super().__init__(name=f"ravi-health-{name}", daemon=True)
        self._what, self._look = name, look
        self._found: Check | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = Check(self._what, True, self._look())
        except Unhealthy as problem:
            self._found = Check(self._what, False, str(problem))
        except Exception as error:
            self._found = Check(self._what, False, f"{type(error).__name__}: {error}".strip())
        finally:
            connections.close_all()

    def outcome(self, wait_s: float) -> Check:
        self.join(wait_s)
        return self._found or Check(self._what, False, f"no answer within {LIMIT_S:g} s")


def database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return str(connection.vendor)


def broker() -> str:
    """A real connection, as hints have."""
    with hints.broker_connection() as connecting:
        address = connecting.as_uri()  # without the password
        try:
            connecting.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=int(ANSWER_S))
        except Exception as error:
            raise Unhealthy(f"{address}: {type(error).__name__}: {error}") from error
        return f"{address}: {connecting.transport.driver_type}"


def channel_layer() -> str:
    """One message there and back."""
    from channels.layers import get_channel_layer

    layer = get_channel_layer()
    if layer is None:
        return "none is configured"

    async def round_trip() -> None:
        sent = {"type": "ravi.health", "id": uuid.uuid4().hex}
        async with asyncio.timeout(ANSWER_S):
            channel = await layer.new_channel()
            await layer.send(channel, sent)
            if await layer.receive(channel) != sent:
                raise Unhealthy("the message that came back was another one")

    try:
        asyncio.run(round_trip())
    except TimeoutError:
        raise Unhealthy(f"a message did not come back within {ANSWER_S:g} s") from None
    return type(layer).__name__


def events() -> str:
    """The buffer that streams are read from."""
    buffer = get_buffer()
    buffer.ping()
    return type(buffer).__name__


def event_bus() -> str:
    """How much waits for the bus. Runs do not need it, so whatever is wrong with it is told, and no reason to fail."""
    count, age = outbox_rows.backlog()
    refused, why = outbox_rows.refused()
    more = f"; {refused} {REFUSED}, {why}" if refused else ""
    if not count:
        return "nothing waits" + more
    waits = f"{'at least ' if count >= outbox_rows.MANY else ''}{count} events wait, the oldest for {age:.0f} s"
    return (waits if age < LATE_S else f"{waits}: {LATE}") + more


def erasures() -> str:
    """Deleted users and sessions whose rows the sweep has still to erase. Runs do not need it: no reason to fail."""
    age = ExpressionWrapper(clock.now() - F("created_at"), output_field=DurationField())
    found = Erasure.objects.aggregate(count=Count("id"), oldest=Max(age))
    if not found["count"]:
        return "none is open"
    return f"{found['count']} are open, the oldest for {found['oldest'].total_seconds():.0f} s"


def worker() -> str:
    lost, is_exhausted = hanging()
    if is_exhausted:
        raise Unhealthy(f"{lost} calls of tools hang in this process and no thread is left; restart it, fix the tools")
    limit = MISSED * float(conf.HEARTBEAT_S)
    alive = WorkerProcess.objects.filter(seen_at__gt=clock.after(-limit)).count()
    if not alive:
        words = f"no worker consumes the queue {conf.QUEUE}" if conf.ENGINE == "celery" else "no worker is alive"
        raise Unhealthy(f"{words}: none was seen for {limit:g} s; start one: {worker_line()}")
    return f"{alive} alive" + (f"; {lost} calls of tools hang in this process" if lost else "")


def sweep() -> str:
    limit = MISSED * float(conf.SWEEP_S) + MARGIN_S
    age = ExpressionWrapper(clock.now() - F("ran_at"), output_field=DurationField())
    ages = SweepState.objects.annotate(age=age).values_list("age", flat=True)
    seconds = [found.total_seconds() for found in ages]
    if not seconds or min(seconds) > limit:
        words = f"the last sweep ran {min(seconds):.0f} s ago" if seconds else "no sweep has run yet"
        raise Unhealthy(f"{words}; start one: {worker_line() if conf.ENGINE == 'inline' else 'celery -A <site> beat'}")
    return f"ran {max(0.0, min(seconds)):.1f} s ago"
