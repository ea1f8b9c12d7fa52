"""For adapters of a site: the item, the result of a poll and its error. Guide: docs/howto/adapters.md."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.wings.feeds.fetching.adapter import Item, Polled, SourceError

__all__ = ["Item", "Polled", "SourceError"]
__getattr__ = public(__name__, {"wings.feeds.fetching.adapter": "Item Polled SourceError"})
