"""Follow topics and publish to them. Guide: docs/howto/feeds.md."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.wings.feeds.social.follows import follow, followers, unfollow
    from ravi_django.wings.feeds.social.publications import MAX_HOPS, emit

__all__ = ["MAX_HOPS", "emit", "follow", "followers", "unfollow"]
__getattr__ = public(
    __name__,
    {"wings.feeds.social.follows": "follow followers unfollow", "wings.feeds.social.publications": "MAX_HOPS emit"},
)
