"""The event bus: what happens to runs, for the site's own programs. Guide: docs/events.md.

Programs that read the bus are as trusted as those that read the database: it has the events of all owners and tenants.
"""

from ravi_django.runtime.events.bus import Bus, Delivered
from ravi_django.runtime.events.memory import MemoryBus
from ravi_django.runtime.events.relay import enqueue
from ravi_django.runtime.events.site import get_bus
from ravi_django.runtime.events.valkey import ValkeyBus

__all__ = ["Bus", "Delivered", "MemoryBus", "ValkeyBus", "enqueue", "get_bus"]
