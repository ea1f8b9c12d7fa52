"""Agents that read: a source's items, a person's feed, a digest. Read `information.py` first."""
