"""Topics: follows, publications, fan-out and digests.

Owns Follow, Publication and FeedItem. It must survive a death within a batch: each follower gets a message once. Read
`fan_out.py` first.
"""
