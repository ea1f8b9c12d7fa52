"""Fetch and parse feeds and files, and make items of them."""

from ravi_django.capabilities.feeds.adapter import Polled, SourceError
from ravi_django.capabilities.feeds.item import Item

__all__ = ["Item", "Polled", "SourceError"]
