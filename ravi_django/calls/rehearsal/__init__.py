"""A model without an API key, which answers by rules, for trials.

Owns no table. It must survive a replay: the same messages have the same answer. Read `model.py` first.
"""
