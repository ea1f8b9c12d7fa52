"""For adapters of a site: the item, the result of a poll and its error. Guide: docs/sources.md."""

from ravi_django.wings.feeds.fetching.adapter import Item, Polled, SourceError

__all__ = ["Item", "Polled", "SourceError"]
