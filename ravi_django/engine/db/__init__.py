"""Database access of the runtime: threads, connections, PostgreSQL statements and the clock of stored times.

Owns no table. It must survive a database that is away: a call is repeated or fails in bounded time, and no connection
is held across an await. Read `threads.py` first.
"""
