"""Fetch and parse feeds, and make items of them.

Owns no table. It must survive any bytes of any server: time, size and depth are bounded. Read `fetch.py` first.
"""
