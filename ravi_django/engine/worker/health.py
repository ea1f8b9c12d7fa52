"""Health checks: one for each service that runs need.

Each check runs on its own thread with its own connections and for a bounded time: a service that does not answer must
not block the caller.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connections
from django.db.models import Count, Max

from ravi_django import wing
from ravi_django.calls.tools.tool_threads import hanging
from ravi_django.conf import conf, worker_line
from ravi_django.db import connection
from ravi_django.engine.db import clock
from ravi_django.live.streams.buffer import get_buffer
from ravi_django.models import Erasure, SweepState
from ravi_django.runs import hints, workers

ANSWER_S = 1.0  # for the answer of one service
LIMIT_S = 2.0  # for all checks, which run concurrently
MARGIN_S = 5.0  # for a sweep to wait in the broker's queue and to run


@dataclass(frozen=True, slots=True)
class Check:
    name: str  # database, broker, channel_layer, events, worker, sweep, erasures, event_bus
    ok: bool
    detail: str  # for an operator: the finding, or the fault and its fix
    fix: str = ""  # where it works, and an operator has to do something


def check_all() -> list[Check]:
    """Run every check; the results have a fixed order. Takes LIMIT_S or little more."""
    wanted: dict[str, Callable[[], str]] = {"database": database}
    if conf.ENGINE == "celery":
        wanted["broker"] = broker
    wanted |= {"channel_layer": channel_layer, "events": events, "worker": worker, "sweep": sweep, "erasures": erasures}
    for _, looks in wing.each("health"):
        wanted |= looks()
    begun = [_Attempt(name, look) for name, look in wanted.items()]
    give_up = time.monotonic() + LIMIT_S
    return [attempt.outcome(max(0.0, give_up - time.monotonic())) for attempt in begun]


class Unhealthy(Exception):
    """The service does not work; the message is for an operator."""


class DoubtfulError(Exception):
    """The service works, and an operator has to do something: the detail, and the fix."""


class _Attempt(threading.Thread):
    """A running check. A daemon: one that hangs delays neither the answer nor the end of the process."""

    def __init__(self, name: str, look: Callable[[], str]) -> None:
        super().__init__(name=f"ravi-health-{name}", daemon=True)
        self._check, self._look = name, look
        self._result: Check | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = Check(self._check, True, self._look())
        except DoubtfulError as doubt:
            self._result = Check(self._check, True, *doubt.args)
        except Unhealthy as problem:
            self._result = Check(self._check, False, str(problem))
        except Exception as error:
            self._result = Check(self._check, False, f"{type(error).__name__}: {error}".strip())
        finally:
            connections.close_all()

    def outcome(self, wait_s: float) -> Check:
        self.join(wait_s)
        return self._result or Check(self._check, False, f"no answer within {LIMIT_S:g} s")


def database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return str(connection.vendor)


def broker() -> str:
    """Connect with the options of a hint's connection."""
    with hints.broker_connection() as connecting:
        address = connecting.as_uri()  # without the password
        try:
            connecting.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=int(ANSWER_S))
        except Exception as error:
            raise Unhealthy(f"{address}: {type(error).__name__}: {error}") from error
        return f"{address}: {connecting.transport.driver_type}"


def channel_layer() -> str:
    """Send one message and receive it."""
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
                raise Unhealthy("received another message than was sent")

    try:
        asyncio.run(round_trip())
    except TimeoutError:
        raise Unhealthy(f"a message was not received within {ANSWER_S:g} s") from None
    return type(layer).__name__


def events() -> str:
    """The buffer that streams are read from."""
    buffer = get_buffer()
    buffer.ping()
    return type(buffer).__name__


def erasures() -> str:
    """Report the erasures that the sweep has not finished. Never fails: runs do not need it."""
    unfinished = Erasure.objects.aggregate(count=Count("id"), oldest=Max(clock.age("created_at")))
    if not unfinished["count"]:
        return "none is open"
    return f"{unfinished['count']} are open, the oldest for {unfinished['oldest'].total_seconds():.0f} s"


def worker() -> str:
    lost, is_exhausted = hanging()
    if is_exhausted:
        raise Unhealthy(f"{lost} calls of tools hang in this process and no thread is left; restart it, fix the tools")
    alive = workers.alive().count()
    if not alive:
        limit = workers.MISSED * float(conf.HEARTBEAT_S)
        problem = f"no worker consumes the queue {conf.QUEUE}" if conf.ENGINE == "celery" else "no worker is alive"
        raise Unhealthy(f"{problem}: none was seen for {limit:g} s; start one: {worker_line()}")
    return f"{alive} alive" + (f"; {lost} calls of tools hang in this process" if lost else "")


def sweep() -> str:
    limit = workers.MISSED * float(conf.SWEEP_S) + MARGIN_S
    ages = SweepState.objects.annotate(age=clock.age("ran_at")).values_list("age", flat=True)
    seconds = [age.total_seconds() for age in ages]
    if not seconds or min(seconds) > limit:
        problem = f"the last sweep ran {min(seconds):.0f} s ago" if seconds else "no sweep has run yet"
        raise Unhealthy(
            f"{problem}; start one: {worker_line() if conf.ENGINE == 'inline' else 'celery -A <site> beat'}"
        )
    return f"ran {max(0.0, min(seconds)):.1f} s ago"
