"""What the world outside has that is new: feeds fetched and read, and the items that come of it."""

from ravi_django.capabilities.feeds.adapter import Polled, SourceError
from ravi_django.capabilities.feeds.item import Item

__all__ = ["Item", "Polled", "SourceError"]
