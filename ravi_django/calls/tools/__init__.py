"""A journaled tool call.

Owns no table. It must survive a death between the effect and its row: `guarantees.py` has the guarantee of each kind of
tool. Read `call.py` first.
"""
