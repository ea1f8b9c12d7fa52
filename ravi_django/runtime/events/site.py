"""The bus of a site."""

from __future__ import annotations

import os

from django.core.exceptions import ImproperlyConfigured

from ravi_django.conf import conf
from ravi_django.runtime.events.bus import Bus
from ravi_django.runtime.events.memory import MemoryBus
from ravi_django.runtime.events.valkey import ValkeyBus
from ravi_django.runtime.streams.buffer import stream_url

MEMORY = "memory"

_buses: dict[tuple[int, str], Bus] = {}


def address() -> str | None:
    """The URL of the bus's server, or "memory"; None when the site has no bus. "auto" is the Redis of the streams, or
    "memory" without one."""
    given = conf.EVENT_BUS
    return (stream_url() or MEMORY) if given == "auto" else given


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
