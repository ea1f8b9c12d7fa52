"""News: follow, publish, sources, schedules and the agents that read.

Its packages own the tables. It must survive a death between two batches: the sweep continues. Read `wing.py` first:
what the core calls.
"""
