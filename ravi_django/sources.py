"""Sources of news for agents: feeds, webhooks, adapters and the event bus. Guide: docs/howto/sources.md."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.wings.feeds.fetching.adapter import register_source_adapter
    from ravi_django.wings.feeds.sources.adding import add_source
    from ravi_django.wings.feeds.sources.webhooks import feed_agent, forget_old_secret, make_secret, path_of

__all__ = ["add_source", "feed_agent", "forget_old_secret", "make_secret", "path_of", "register_source_adapter"]
__getattr__ = public(
    __name__,
    {
        "wings.feeds.fetching.adapter": "register_source_adapter",
        "wings.feeds.sources.adding": "add_source",
        "wings.feeds.sources.webhooks": "feed_agent forget_old_secret make_secret path_of",
    },
)
