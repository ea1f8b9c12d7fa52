"""Event streams: frames of a run tree, numbered, in Valkey or in a table.

Owns StreamFrame. It must survive a lost buffer: frames are made again from the journal. Read `frames.py` first.
"""
