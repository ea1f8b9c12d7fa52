"""What an operator sees of the event bus: checks, health, the doctor's findings and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.core.checks import CheckMessage, Warning

from ravi_django.checks import wrong
from ravi_django.conf import conf
from ravi_django.engine.journal.outbox import is_on
from ravi_django.engine.worker.health import DoubtfulError
from ravi_django.management.diagnosis import Finding, has_table
from ravi_django.models import OutboxEvent
from ravi_django.wings.events import relay

LATE_S = 60.0  # an event that waits for longer is late
_SERVERS = ("redis://", "rediss://", "unix://")


def check() -> list[CheckMessage]:
    bus = conf.EVENT_BUS
    known = isinstance(bus, str) and (bus in ("auto", "memory") or bus.startswith(_SERVERS))
    if bus is not None and not known:
        hint = 'None writes no events; "auto" is the Redis of the streams, "memory" this process, or an address such as'
        return [wrong("EVENT_BUS", f"{hint} redis://host:6379/0", "ravi.E020")]
    if bus is not None and conf.ENGINE == "celery" and relay.address() == relay.MEMORY:
        text = "The event bus is in this process only: events of other processes are not received here."
        hint = 'RAVI[\'EVENT_BUS\'] = "redis://host:6379/0", or "auto" if the streams have a Redis.'
        return [Warning(text, hint=hint, id="ravi.W020")]
    return []


def health() -> dict[str, Callable[[], str]]:
    return {} if conf.EVENT_BUS is None else {"event_bus": event_bus}


def event_bus() -> str:
    """Report the events that wait for the bus. Never fails: runs do not need it."""
    count, age = relay.backlog()
    refused, why = relay.refused()
    waits = f"{_many(count)} events wait, the oldest for {age:.0f} s" if count else "nothing waits"
    if age >= LATE_S:
        waits += ": late; check the server of RAVI['EVENT_BUS'], the workers and beat"
    if refused:
        fix = "check the topic's key on the server of RAVI['EVENT_BUS'], and the permissions of its user"
        raise DoubtfulError(f"{waits}; {refused} refused by the server and tried once an hour, {why}", fix)
    if age >= LATE_S:
        raise DoubtfulError(waits, "start the server of RAVI['EVENT_BUS']; the outbox grows until then")
    return waits


def _many(count: int) -> str:
    return f"{'at least ' if count >= relay.MANY else ''}{count}"


def outbox() -> Iterator[Finding]:
    """Events in the outbox of a site that has no event bus any more."""
    if is_on() or not has_table(OutboxEvent):
        return
    count, age = relay.stranded()
    if count:
        many = f"{_many(count)} events wait, the oldest for {age:.0f} s"
        fix = (
            "set RAVI['EVENT_BUS'] again to publish them; with RAVI['RETENTION'] = {\"outbox\": 1} "
            "manage.py ravi_prune removes those older than a day"
        )
        yield Finding("warning", f"outbox: {many}, and RAVI['EVENT_BUS'] is None", fix)


def metrics() -> str:
    """The backlog of the event bus; empty on a site without one."""
    if not is_on():
        return ""
    count, age = relay.backlog()
    refused, _ = relay.refused()
    return (
        "# HELP ravi_outbox_events Events that wait for the bus.\n"
        f"# TYPE ravi_outbox_events gauge\nravi_outbox_events {count}\n"
        "# HELP ravi_outbox_oldest_seconds Age of the oldest of them.\n"
        f"# TYPE ravi_outbox_oldest_seconds gauge\nravi_outbox_oldest_seconds {age:.3f}\n"
        "# HELP ravi_outbox_refused Further events that the bus's server refuses.\n"
        f"# TYPE ravi_outbox_refused gauge\nravi_outbox_refused {refused}\n"
    )
