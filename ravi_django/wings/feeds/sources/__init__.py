"""Sources of items for agents: feeds, webhooks, adapters and the event bus.

Owns Source and SourceItem. It must survive a crash between reading and delivering: each item is delivered once. Read
`poll.py` first.
"""
