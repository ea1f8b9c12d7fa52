"""A journaled model call: admission to budgets, streaming and its row.

Owns no table. It must survive a death after the answer: a recorded call is not paid again. Read `call.py` first.
"""
