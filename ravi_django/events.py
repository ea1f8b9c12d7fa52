"""The event bus: events of runs for the site's own programs. Guide: docs/howto/events.md.

The bus has the events of all owners and tenants: trust its readers like readers of the database.
"""

from typing import TYPE_CHECKING

from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.wings.events.bus import Bus, Delivered, Handler as Handler, NotYet as NotYet
    from ravi_django.wings.events.memory import MemoryBus
    from ravi_django.wings.events.relay import enqueue, get_bus
    from ravi_django.wings.events.valkey import ValkeyBus

__all__ = ["Bus", "Delivered", "MemoryBus", "ValkeyBus", "enqueue", "get_bus"]
__getattr__ = public(
    __name__,
    {
        "wings.events.bus": "Bus Delivered NotYet",
        "wings.events.memory": "MemoryBus",
        "wings.events.relay": "enqueue get_bus",
        "wings.events.valkey": "ValkeyBus",
    },
)
