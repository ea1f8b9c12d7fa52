"""The recorded results of a run: journal rows, the fenced append, the replay and the outbox.

Owns JournalEntry, Blob, Turn, OutboxEvent and AuditRecord. It must survive a worker that lost its lease and a commit
whose answer was lost: neither records a row twice. Read `fence.py` first.
"""
