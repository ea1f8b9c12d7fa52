"""Agents that read: a source's items, a person's feed, a digest.

Owns no table. It must survive a text from outside that gives orders: it is data for the model. Read `information.py`
first.
"""
