"""The event bus: events of runs for the site's own programs. Guide: docs/events.md.

The bus has the events of all owners and tenants: trust its readers like readers of the database.
"""

from ravi_django.runtime.events.bus import Bus, Delivered
from ravi_django.runtime.events.memory import MemoryBus
from ravi_django.runtime.events.relay import enqueue, get_bus
from ravi_django.runtime.events.valkey import ValkeyBus

__all__ = ["Bus", "Delivered", "MemoryBus", "ValkeyBus", "enqueue", "get_bus"]
