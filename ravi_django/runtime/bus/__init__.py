"""The event bus: what happens to runs, told to the site's own programs.

Programs that read it are trusted like the database's: it holds the events of all owners and tenants, each of which
says whose it is. Nothing here is meant for a browser; that has the streams.

- `get_bus`: the bus of this site, by RAVI["EVENT_BUS"]
- `enqueue`: an event of a site's own, in the transaction that it tells of
"""

from ravi_django.runtime.bus.base import Bus, Delivered
from ravi_django.runtime.bus.memory import MemoryBus
from ravi_django.runtime.bus.outgoing import enqueue
from ravi_django.runtime.bus.site import get_bus
from ravi_django.runtime.bus.valkey import ValkeyBus

__all__ = ["Bus", "Delivered", "MemoryBus", "ValkeyBus", "enqueue", "get_bus"]
