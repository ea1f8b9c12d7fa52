"""Actions on a whole run: end, cancel, retry, fork, handoff, next generation, erasure, pruning.

Owns Erasure. It must survive a death in the middle: each step is a transaction, and the sweep repeats what is left.
Read `endings.py` first.
"""
