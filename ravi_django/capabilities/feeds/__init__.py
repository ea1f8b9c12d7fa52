"""Fetch and parse feeds, and make items of them."""

from ravi_django.capabilities.feeds.adapter import Item, Polled, SourceError

__all__ = ["Item", "Polled", "SourceError"]
