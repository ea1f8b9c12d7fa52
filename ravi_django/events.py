"""The event bus: events of runs for the site's own programs. Guide: docs/events.md.

The bus has the events of all owners and tenants: trust its readers like readers of the database.
"""

from ravi_django.wings.events.bus import Bus, Delivered
from ravi_django.wings.events.memory import MemoryBus
from ravi_django.wings.events.relay import enqueue, get_bus
from ravi_django.wings.events.valkey import ValkeyBus

__all__ = ["Bus", "Delivered", "MemoryBus", "ValkeyBus", "enqueue", "get_bus"]
