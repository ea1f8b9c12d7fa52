"""Sources of news for agents: feeds, webhooks, adapters and the event bus. Guide: docs/sources.md."""

from ravi_django.wings.feeds.fetching.adapter import register_source_adapter
from ravi_django.wings.feeds.sources.adding import add_source
from ravi_django.wings.feeds.sources.webhooks import feed_agent, forget_old_secret, make_secret, path_of

__all__ = ["add_source", "feed_agent", "forget_old_secret", "make_secret", "path_of", "register_source_adapter"]
