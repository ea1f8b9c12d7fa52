"""The event bus for the site's own programs: in this process, or in Valkey, fed from the outbox.

Owns no table; it reads OutboxEvent. It must survive a bus that is away: events wait in the outbox. Read `relay.py`
first.
"""
