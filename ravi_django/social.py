"""Follow topics and publish to them. Guide: docs/feeds.md."""

from ravi_django.wings.feeds.social.follows import follow, followers, unfollow
from ravi_django.wings.feeds.social.publications import MAX_HOPS, emit

__all__ = ["MAX_HOPS", "emit", "follow", "followers", "unfollow"]
