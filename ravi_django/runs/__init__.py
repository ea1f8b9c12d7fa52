"""A run outside of any lease: submit, sessions, signals, wake-ups and hints.

Owns Run, Session, InboxMessage and Signal. It must survive lost hints: the sweep finds runs without a hint. Read
`submit.py` first.
"""
